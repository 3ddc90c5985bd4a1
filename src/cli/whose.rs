//! `--tenant`: whose recordings a command is about.

use std::io::Write;
use std::path::Path;

use crate::app::{Fault, code};
use crate::config::Config;
use crate::journal::Options;
use crate::recorder::tenant::{DEFAULT, Error, Tenant, orphans};

/// One tenant, or what is meant where none is named.
#[derive(clap::Args)]
pub struct Whose {
    /// Of the clients of this [[tenant]]; "default" is whoever belongs to none.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

impl Whose {
    /// The one that is named, else the default one, with its journal in `dir` instead of the configured folder.
    ///
    /// # Errors
    /// A fault that lists the tenants where there is none of that name.
    pub fn one(&self, dir: Option<&Path>, config: &Config) -> Result<Tenant, Fault> {
        named(self.tenant.as_deref().unwrap_or(DEFAULT), dir, config)
    }

    /// The one that is named, else all of them that have recorded, the default one first; those that no section
    /// speaks of are left out, and that is said.
    ///
    /// # Errors
    /// As [`Whose::one`].
    pub fn all(&self, dir: Option<&Path>, config: &Config) -> Result<Vec<Tenant>, Fault> {
        if self.tenant.is_some() {
            return Ok(vec![self.one(dir, config)?]);
        }
        let default = self.one(dir, config)?;
        for orphan in orphans(&default.config.dir, &config.tenant) {
            let orphan = orphan.display();
            let _ = writeln!(
                std::io::stderr(),
                "serin: {orphan} belongs to no [[tenant]] of this configuration and is left out"
            );
        }
        let own = config.tenant.iter().map(|tenant| named(&tenant.name, dir, config));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        let there = own.into_iter().filter(|tenant| tenant.config.dir.is_dir());
        Ok(std::iter::once(default).chain(there).collect())
    }
}

fn named(name: &str, dir: Option<&Path>, config: &Config) -> Result<Tenant, Fault> {
    let mut record = config.record.clone();
    if let Some(dir) = dir {
        dir.clone_into(&mut record.dir);
    }
    let mut tenant = Tenant::one(&record, &config.tenant, name).map_err(|error| {
        let code = if matches!(error, Error::Unknown(..)) { code::USAGE } else { code::UNREADABLE };
        Fault::new(code, error.to_string())
    })?;
    // The memory for traffic's records has nothing to do with what may wait here.
    tenant.options.pending_bytes = Options::default().pending_bytes;
    Ok(tenant)
}
