//! Which upstream a path goes to, and which paths are conversations.

use std::sync::Arc;

use hyper::Method;
use serde::{Deserialize, Serialize};

use crate::upstream::balance::{Balance, Group, Member};

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
    table: Vec<(String, Group)>,
}

/// Whether the embedded engine may stand in for a router that is down.
pub fn may_fall_back(method: &Method, path: &str) -> bool {
    method == Method::POST && matches!(path, "/v1/chat/completions" | "/v1/completions")
}

impl Routes {
    /// Builds the table; without `[[route]]` every path goes to all upstreams. Errors name the key to mend.
    pub fn new(routes: &[Config], members: &[Arc<Member>], balance: &Arc<Balance>) -> Result<Self, String> {
        let mut table = Vec::new();
        for route in routes {
            let named = |name: &String| {
                let found = members.iter().find(|member| member.upstream().name() == name).cloned();
                found.ok_or_else(|| format!("no [[upstream]] is named {name:?}"))
            };
            let group: Vec<_> = route
                .upstreams
                .iter()
                .map(named)
                .collect::<Result<_, _>>()
                .and_then(|group: Vec<_>| match group.is_empty() {
                    true => Err("upstreams is empty; name an [[upstream]]".to_owned()),
                    false => Ok(group),
                })
                .map_err(|error| format!("[[route]] path_prefix = {:?}: {error}", route.path_prefix))?;
            table.push((route.path_prefix.clone(), Group::new(group, balance.clone())));
        }
        if routes.is_empty() && !members.is_empty() {
            // The empty prefix covers `OPTIONS *` too, whose target is no path.
            table.push((String::new(), Group::new(members.to_vec(), balance.clone())));
        }
        table.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Ok(Self { table })
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn choose(&self, path: &str) -> Option<&Group> {
        let found = self.table.iter().find(|(prefix, _)| path.starts_with(prefix.as_str()));
        found.map(|(_, group)| group)
    }
}
