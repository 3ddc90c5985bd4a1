//! What may reach a disk or a log. Headers are kept by an allow-list: a name nobody thought of is never stored with its value.
//! Bodies are kept, with masks where [`body`] finds a secret.

pub mod body;

use hyper::HeaderMap;

/// Headers whose values are recorded (recording.md's list: formats, versions and correlation, never credentials).
const KEPT: [&str; 27] = [
    "accept",
    "accept-encoding",
    "anthropic-beta",
    "anthropic-version",
    "content-encoding",
    "content-length",
    "content-type",
    "helicone-session-id",
    "openai-beta",
    "openai-processing-ms",
    "openai-version",
    "retry-after",
    "server",
    "session-id",
    "session_id",
    "traceparent",
    "transfer-encoding",
    "user-agent",
    "x-claude-code-session-id",
    "x-dynamo-session-id",
    "x-litellm-session-id",
    "x-opencode-session",
    "x-openwebui-chat-id",
    "x-request-id",
    "x-serin-served-by",
    "x-session-affinity",
    "x-session-id",
];

/// Query parameters whose values are recorded: those the APIs define, none of which carries a credential.
const KEPT_PARAMETERS: [&str; 13] = [
    "after",
    "api-version",
    "before",
    "beta",
    "include",
    "limit",
    "model",
    "order",
    "purpose",
    "stream",
    "timeout",
    "variant",
    "version",
];

/// Stands where a value was withheld, with its length: enough to tell "was sent" from "was not".
fn withheld(length: usize) -> String {
    format!("<withheld {length} bytes>")
}

/// The headers as they may be recorded, in order; repeated ones stay repeated.
pub fn headers(map: &HeaderMap) -> Vec<(String, String)> {
    map.iter()
        .map(|(name, value)| {
            let shown = if KEPT.contains(&name.as_str()) {
                String::from_utf8_lossy(value.as_bytes()).into_owned()
            } else {
                withheld(value.len())
            };
            (name.as_str().to_owned(), shown)
        })
        .collect()
}

/// Path and query with every value withheld that is not known to be harmless; names stay.
pub fn target(path_and_query: &str) -> String {
    let Some((path, query)) = path_and_query.split_once('?') else { return path_and_query.to_owned() };
    let masked: Vec<String> = query
        .split('&')
        .map(|pair| match pair.split_once('=') {
            Some((name, _)) if !KEPT_PARAMETERS.contains(&name) => format!("{name}=<withheld>"),
            // A bare word may be a key itself.
            None if !pair.is_empty() && !KEPT_PARAMETERS.contains(&pair) => withheld(pair.len()),
            _ => pair.to_owned(),
        })
        .collect();
    format!("{path}?{}", masked.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn a_credential_never_survives() {
        let mut map = HeaderMap::new();
        for name in ["authorization", "x-api-key", "cookie", "x-invented-tomorrow", "proxy-authorization"] {
            map.append(name, HeaderValue::from_static("sk-planted-marker"));
        }
        map.append("user-agent", HeaderValue::from_static("curl/8"));
        let kept = headers(&map);
        assert!(kept.iter().all(|(_, value)| !value.contains("planted")), "{kept:?}");
        assert!(kept.contains(&("user-agent".to_owned(), "curl/8".to_owned())));
        assert!(kept.contains(&("authorization".to_owned(), "<withheld 17 bytes>".to_owned())));
    }

    #[test]
    fn query_secrets_are_masked_and_the_rest_is_verbatim() {
        assert_eq!(
            target("/v1/x?limit=1&API_KEY=planted&sk-planted&api%5Fkey=planted&stream"),
            "/v1/x?limit=1&API_KEY=<withheld>&<withheld 10 bytes>&api%5Fkey=<withheld>&stream"
        );
        assert_eq!(target("/v1/x"), "/v1/x");
    }
}
