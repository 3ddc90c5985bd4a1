//! What `[listen]`, `[admin]` and `[[upstream]]` say about certificates, and which of it contradicts itself.

use std::path::{Path, PathBuf};

use super::{Admin, Config, Listen};
use crate::server::tls::{ClientCertificates, Identity, Wanted};

impl Listen {
    /// What the section says about TLS.
    pub fn tls(&self) -> Wanted {
        let mut wanted =
            wanted(&self.cert_file, &self.key_file, &self.client_ca_file, self.client_certificates);
        wanted.identities.extend_from_slice(&self.certificate);
        wanted
    }
}

impl Admin {
    /// What the section says about TLS.
    pub fn tls(&self) -> Wanted {
        wanted(&self.cert_file, &self.key_file, &self.client_ca_file, self.client_certificates)
    }
}

fn wanted(cert: &Path, key: &Path, client_ca: &Path, client_certificates: ClientCertificates) -> Wanted {
    let identity = Identity { cert_file: cert.to_owned(), key_file: key.to_owned() };
    let identities = if cert.as_os_str().is_empty() { Vec::new() } else { vec![identity] };
    Wanted { identities, client_ca_file: client_ca.to_owned(), client_certificates }
}

impl Config {
    pub(super) fn check_certificates(&self) -> Result<(), String> {
        let unset = |path: &PathBuf| path.as_os_str().is_empty();
        let (listen, admin) = (&self.listen, &self.admin);
        for (section, cert, key) in [
            ("[listen]", &listen.cert_file, &listen.key_file),
            ("[admin]", &admin.cert_file, &admin.key_file),
        ] {
            if unset(cert) != unset(key) {
                return Err(format!("{section} cert_file and key_file belong together; set both or neither"));
            }
        }
        if let Some(upstream) =
            self.upstream.iter().find(|one| one.cert_file.is_some() != one.key_file.is_some())
        {
            return Err(format!(
                "[[upstream]] name = {:?}: cert_file and key_file belong together; set both or neither",
                upstream.name
            ));
        }
        if listen.transparent && !listen.tls().identities.is_empty() {
            return Err("[listen] transparent = true reads what clients send in plain text; it cannot be combined with \
                        cert_file"
                .to_owned());
        }
        if listen.transparent && !cfg!(target_os = "linux") {
            return Err("[listen] transparent = true is there on Linux only; set it to false".to_owned());
        }
        for (section, wanted) in [("[listen]", listen.tls()), ("[admin]", admin.tls())] {
            let asks = wanted.client_certificates != ClientCertificates::None;
            if asks == unset(&wanted.client_ca_file) {
                return Err(format!(
                    "{section} client_ca_file and client_certificates (\"requested\" or \"required\") belong \
                     together; set both or neither"
                ));
            }
            if asks && wanted.identities.is_empty() {
                return Err(format!(
                    "{section} client_certificates needs TLS, and so cert_file and key_file"
                ));
            }
        }
        Ok(())
    }
}
