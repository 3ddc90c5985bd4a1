//! What to do about a mistake that the parser can only describe.

/// Adds a remedy to a parser's message, where there is one. `line` is the line it stands in.
pub fn add(message: String, line: &str) -> String {
    let value = line.split_once('=').map_or("", |(_, value)| value.trim());
    let unquoted = value.starts_with(|first: char| first.is_ascii_digit());
    let remedy = if message.contains("socket address") {
        "write an IP address and a port, such as \"127.0.0.1:8080\""
    } else if message.contains("expected a sequence") && line.trim_start().starts_with("[upstream") {
        "write [[upstream]] with two brackets: there may be several"
    } else if message.contains("expected a sequence") && line.trim_start().starts_with("[route") {
        "write [[route]] with two brackets: there may be several"
    } else if message.contains("expected a sequence") && line.trim_start().starts_with("[tenant") {
        "write [[tenant]] with two brackets: there may be several"
    } else if message.contains("expected a sequence") {
        "write a list in brackets, such as [\"*\"]"
    } else if unquoted && (message.contains("expected a string") || value.ends_with(char::is_alphabetic)) {
        "write it in quotes with its unit, such as \"30s\" or \"64MiB\""
    } else if message.contains("missing field `name`") && line.trim_start().starts_with("[[tenant") {
        "each [[tenant]] needs a name of your choice"
    } else if message.contains("missing field `name`") {
        "each [[upstream]] needs a name of your choice"
    } else {
        return message;
    };
    format!("{message}; {remedy}")
}
