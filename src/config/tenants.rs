//! What `[[tenant]]` sections may say.

use hyper::header::{HeaderName, HeaderValue};

use super::Config;
use crate::proxy::clients::CREDENTIALS;
use crate::recorder::tenant::{self, MOST};

impl Config {
    pub(super) fn check_tenants(&self) -> Result<(), String> {
        if self.tenant.len() > MOST {
            return Err(format!("{} [[tenant]] are beyond any use; {MOST} is the most", self.tenant.len()));
        }
        for (at, tenant) in self.tenant.iter().enumerate() {
            tenant.check(&self.record)?;
            let at_name = |says: &str| Err(format!("[[tenant]] name = {:?}: {says}", tenant.name));
            if tenant.memory.is_some_and(|memory| memory < self.limits.body_copy) {
                return at_name(
                    "memory is smaller than [limits] body_copy; no such body could ever be recorded",
                );
            }
            check_members(tenant).or_else(|says| at_name(&says))?;
            for earlier in &self.tenant[..at] {
                if earlier.name == tenant.name {
                    return Err(format!("two [[tenant]] are named {:?}; names must differ", tenant.name));
                }
                let same =
                    earlier.header.eq_ignore_ascii_case(&tenant.header) && earlier.value == tenant.value;
                if same && !tenant.header.is_empty() {
                    return at_name(&format!(
                        "header and value are those of {:?} as well; a value belongs to one tenant",
                        earlier.name
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether somebody could belong to it.
fn check_members(tenant: &tenant::Config) -> Result<(), String> {
    let (header, value) = (tenant.header.as_str(), tenant.value.as_str());
    match (header.is_empty(), value.is_empty()) {
        (true, true) if tenant.keys_file.as_os_str().is_empty() => {
            return Err("nobody belongs to it; set keys_file, or header and value".to_owned());
        }
        (true, true) => return Ok(()),
        (false, false) => {}
        _ => return Err("header and value go together; set both or neither".to_owned()),
    }
    let name: HeaderName =
        header.parse().map_err(|_| format!("header = {header:?} is no name of a header"))?;
    if CREDENTIALS.contains(&name) {
        return Err(format!(
            "header = {header:?} carries keys, which stand in no configuration; use keys_file"
        ));
    }
    if HeaderValue::from_str(value).is_err() || value.trim() != value {
        return Err(format!("value = {value:?} is none that a header can have"));
    }
    Ok(())
}
