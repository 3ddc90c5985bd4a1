//! Which upstream a path goes to, and which paths are conversations.

use std::sync::Arc;

use hyper::Method;
use serde::{Deserialize, Serialize};

use crate::upstream::Upstream;

/// `[[route]]`: paths that begin with `path_prefix` go to these upstreams. The longest prefix wins.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub path_prefix: String,
    pub upstreams: Vec<String>,
}

/// The routing table.
pub struct Routes {
    /// Longest prefix first.
    table: Vec<(String, Arc<dyn Upstream>)>,
}

/// What kind of API a request speaks; decides how its errors look and whether the engine could answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Completion,
    Other,
}

impl Api {
    pub fn of(method: &Method, path: &str) -> Self {
        match (method, path) {
            (&Method::POST, "/v1/chat/completions") => Self::Chat,
            (&Method::POST, "/v1/completions") => Self::Completion,
            _ => Self::Other,
        }
    }

    /// Whether the embedded engine may stand in for a router that is down.
    pub fn may_fall_back(self) -> bool {
        self != Self::Other
    }
}

impl Routes {
    /// Builds the table; without `[[route]]` everything goes to the first upstream. Errors name the key to mend.
    pub fn new(routes: &[Config], upstreams: &[Arc<dyn Upstream>]) -> Result<Self, String> {
        let mut table = Vec::new();
        for route in routes {
            let name = route.upstreams.first().ok_or_else(|| {
                format!(
                    "[[route]] path_prefix = {:?}: upstreams is empty; name an [[upstream]]",
                    route.path_prefix
                )
            })?;
            let found = upstreams.iter().find(|upstream| upstream.name() == name).ok_or_else(|| {
                format!("[[route]] path_prefix = {:?}: no [[upstream]] is named {name:?}", route.path_prefix)
            })?;
            table.push((route.path_prefix.clone(), found.clone()));
        }
        if let (true, Some(first)) = (routes.is_empty(), upstreams.first()) {
            // The empty prefix covers `OPTIONS *` too, whose target is no path.
            table.push((String::new(), first.clone()));
        }
        table.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Ok(Self { table })
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn choose(&self, path: &str) -> Option<&dyn Upstream> {
        let found = self.table.iter().find(|(prefix, _)| path.starts_with(prefix.as_str()));
        found.map(|(_, upstream)| upstream.as_ref())
    }
}
