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

/// Whether the embedded engine may stand in for a router that is down.
pub fn may_fall_back(method: &Method, path: &str) -> bool {
    method == Method::POST && matches!(path, "/v1/chat/completions" | "/v1/completions")
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
