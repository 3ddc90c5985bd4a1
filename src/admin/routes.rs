//! What there is on the admin side, and what it takes to get it. `docs/openapi.json` says the same, and a test compares
//! both.

use std::collections::HashMap;

use hyper::Method;

use super::access::Scope;

/// What a route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    Page,
    Metrics,
    Health,
    Ready,
    Reload,
    Live,
    OpenApi,
    Sessions,
    Session,
    Request,
    Response,
    Delete,
    Erasure,
}

/// A method and a path; what stands in braces is a variable.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    pub path: &'static str,
    /// `None`: everybody may, and learns no more than a state without a token.
    pub scope: Option<Scope>,
    pub does: Does,
}

const fn route(method: &'static str, path: &'static str, scope: Option<Scope>, does: Does) -> Route {
    Route { method, path, scope, does }
}

pub const ROUTES: &[Route] = &[
    route("GET", "/", Some(Scope::Metrics), Does::Page),
    route("GET", "/metrics", Some(Scope::Metrics), Does::Metrics),
    // Probes of an orchestrator carry no token.
    route("GET", "/healthz", None, Does::Health),
    route("GET", "/readyz", None, Does::Ready),
    // As Prometheus itself names it.
    route("POST", "/-/reload", Some(Scope::Admin), Does::Reload),
    route("GET", "/api/v1/openapi.json", Some(Scope::Metrics), Does::OpenApi),
    route("GET", "/api/v1/live", Some(Scope::Meta), Does::Live),
    route("GET", "/api/v1/sessions", Some(Scope::Meta), Does::Sessions),
    route("GET", "/api/v1/sessions/{id}", Some(Scope::Meta), Does::Session),
    route("GET", "/api/v1/turns/{id}/request", Some(Scope::Content), Does::Request),
    route("GET", "/api/v1/turns/{id}/response", Some(Scope::Content), Does::Response),
    route("DELETE", "/api/v1/subjects/{tenant}/{kind}/{value}", Some(Scope::Admin), Does::Delete),
    route("GET", "/api/v1/erasures/{id}", Some(Scope::Meta), Does::Erasure),
];

/// What stands in the place of the variables, and in the query.
#[derive(Clone, Debug, Default)]
pub struct Given {
    path: HashMap<&'static str, String>,
    query: Vec<(String, String)>,
}

impl Given {
    /// A variable of the path.
    pub fn path(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    /// The last value of a key.
    pub fn query(&self, name: &str) -> Option<String> {
        self.query.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        self.query.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.query(name).is_some_and(|value| value == "true" || value == "1")
    }

    /// A key of the query that is none of these.
    pub fn unknown(&self, known: &[&str]) -> Option<&str> {
        self.query.iter().map(|(key, _)| key.as_str()).find(|key| !known.contains(key))
    }
}

/// What a path is found to be.
pub enum Found {
    Here(&'static Route, Given),
    /// Only with these methods.
    Otherwise(Vec<&'static str>),
    Nowhere,
}

/// Finds what a request asks for.
pub fn find(method: &Method, path: &str, query: Option<&str>) -> Found {
    let mut methods = Vec::new();
    for route in ROUTES {
        let Some(variables) = matching(route.path, path) else { continue };
        let asked = if *method == Method::HEAD { "GET" } else { method.as_str() };
        if route.method == asked {
            let query = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
            let pairs = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            let query = pairs.map(|(key, value)| (decoded(key), decoded(value))).collect();
            return Found::Here(route, Given { path: variables, query });
        }
        methods.push(route.method);
    }
    if methods.is_empty() { Found::Nowhere } else { Found::Otherwise(methods) }
}

fn matching(template: &'static str, path: &str) -> Option<HashMap<&'static str, String>> {
    let (mut wanted, mut there) = (template.split('/'), path.split('/'));
    let mut variables = HashMap::new();
    loop {
        match (wanted.next(), there.next()) {
            (None, None) => return Some(variables),
            (Some(part), Some(given)) => {
                match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
                    Some(name) if !given.is_empty() => drop(variables.insert(name, decoded(given))),
                    None if part == given => {}
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
}

/// Text without its percent signs. A plus stays one: times have them.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(crate::ids::unhex) {
            Some(byte) => {
                bytes.extend(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::OPENAPI;
    use super::*;

    #[test]
    fn the_description_names_every_route_its_scope_and_its_variables() {
        let described: serde_json::Value = serde_json::from_str(OPENAPI).expect("is JSON");
        let paths = described["paths"].as_object().expect("paths");
        let count: usize = paths.values().map(|methods| methods.as_object().map_or(0, |all| all.len())).sum();
        assert_eq!(count, ROUTES.len(), "as many as there are");
        for route in ROUTES {
            let about = &paths[route.path][route.method.to_lowercase()];
            assert_eq!(about["x-serin-scope"].as_str(), route.scope.map(Scope::name), "{}", route.path);
            let parameters = about["parameters"].as_array().into_iter().flatten();
            let named: Vec<_> =
                parameters.filter(|one| one["in"] == "path").map(|one| &one["name"]).collect();
            let parts = route.path.split('/');
            let variables: Vec<_> =
                parts.filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
            assert_eq!(named, variables, "{}", route.path);
            assert!(about["summary"].is_string() && about["responses"].is_object(), "{}", route.path);
        }
    }

    #[test]
    fn variables_and_queries_are_decoded_and_methods_are_told_apart() {
        let Found::Here(route, given) =
            find(&Method::HEAD, "/api/v1/turns/a%2Fb/request", Some("x=1%20+2&flag=a&flag=b&c"))
        else {
            panic!("it is there")
        };
        assert_eq!((route.does, given.path("id")), (Does::Request, "a/b"));
        assert_eq!((given.query("x").as_deref(), given.all("flag").len()), (Some("1 +2"), 2));
        assert_eq!((given.unknown(&["x", "flag"]), given.unknown(&["x", "flag", "c"])), (Some("c"), None));
        let Found::Otherwise(methods) = find(&Method::PUT, "/api/v1/subjects/a/b/c", None) else {
            panic!("it is there otherwise")
        };
        assert_eq!(methods, ["DELETE"]);
        for path in ["/api/v1/turns//request", "/api/v1/sessions/", "/api/v1", "", "//"] {
            assert!(matches!(find(&Method::GET, path, None), Found::Nowhere), "{path}");
        }
        assert_eq!(decoded("%zz%4"), "%zz%4");
    }
}
