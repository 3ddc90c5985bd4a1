//! What people write: the configuration, and the small texts in it and on the command line.

use serin::admin::range::{self, Part};
use serin::config::Config;
use serin::conversation::Asked;
use serin::fidelity::tag;
use serin::metrics::Metrics;
use serin::redact;
use serin::units::{Size, Span};
use serin::upstream::connect::tls::Wanted;
use serin::upstream::connect::{Endpoint, Versions};
use serin::upstream::fetch::Source;

/// A configuration is refused in one line that names the file, or printed in a form that reads back as the same.
pub fn config(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    match Config::parse(text, "config.toml") {
        Ok(config) => {
            let again = Config::parse(&config.text(), "config.toml");
            assert_eq!(again.ok().as_ref(), Some(&config), "printed as\n{}", config.text());
        }
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with("config.toml:") && !line.contains('\n'), "{line:?}");
        }
    }
}

/// Addresses, spans, sizes, tags, targets and label values: read or refused, never a panic, and nothing secret shown.
pub fn words(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(endpoint) = Endpoint::parse(text, Versions::Auto, Wanted::default(), None) {
        assert!(!endpoint.host.is_empty() && endpoint.port > 0);
        let again = Endpoint::parse(
            &format!("http://{}", endpoint.authority()),
            Versions::Auto,
            Wanted::default(),
            None,
        )
        .ok();
        let again = again.map(|again| (again.host, again.port));
        assert_eq!(again, Some((endpoint.host, endpoint.port)), "{text:?}");
    }
    if let Ok(span) = text.parse::<Span>() {
        assert_eq!(span.to_string().parse(), Ok(span));
    }
    if let Ok(size) = text.parse::<Size>() {
        assert_eq!(size.to_string().parse(), Ok(size));
    }
    let _ = Source::parse(text);
    // Nobody can guess a tag: 32 bytes of it are a keyed hash.
    assert_eq!(tag::Key::new([7; 32]).verify(text), None);
    masked(text);
    exposed(text);
    asked(text);
    ranged(text);
}

/// What a list is asked for is understood, or refused in one line that says which word is not; a place in it reads back as it was
/// given out.
fn asked(text: &str) {
    let given = || Some(text.to_owned());
    let each = [
        Asked { since: given(), ..Asked::default() },
        Asked { until: given(), ..Asked::default() },
        Asked { model: given(), upstream: given(), ..Asked::default() },
        Asked { flags: vec![text.to_owned()], ..Asked::default() },
        Asked { verdicts: vec![text.to_owned()], ..Asked::default() },
        Asked { cursor: given(), ..Asked::default() },
    ];
    for asked in each {
        match asked.filter(u64::MAX) {
            Ok(filter) => {
                let Some(place) = filter.after else { continue };
                let again = Asked { cursor: Some(place.text()), ..Asked::default() }.filter(0);
                assert_eq!(again.ok().and_then(|filter| filter.after), Some(place));
            }
            Err(line) => assert!(!line.is_empty() && !line.contains('\n'), "{line:?}"),
        }
    }
}

/// A part of a body lies in it and is never empty.
fn ranged(text: &str) {
    for len in [0, 1, 10, usize::MAX] {
        for text in [text.to_owned(), format!("bytes={text}")] {
            if let Part::Of(range) = range::part(Some(text.as_bytes()), len) {
                assert!(range.start < range.end && range.end <= len, "{range:?} of {len}");
            }
        }
    }
}

/// A parameter that is not known to be harmless keeps its name and loses its value.
fn masked(text: &str) {
    let secret = "sk-planted";
    if text.contains(['?', '#', '&', '=']) || text.contains(secret) {
        return;
    }
    let shown = redact::target(&format!("/v1/x?my-{text}={secret}&{text}-{secret}"));
    assert!(!shown.contains(secret), "{shown}");
}

/// Whatever a label's value is, the exposition stays one line for each series.
fn exposed(text: &str) {
    let metrics = Metrics::default();
    metrics.counters("serin_fuzz_total", "Help.", &["name"]).with_label_values(&[text]).inc();
    let page = String::from_utf8(metrics.text().expect("encodes")).expect("UTF-8");
    let series: Vec<_> = page.split('\n').filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert!(series.len() == 1 && series[0].ends_with(" 1"), "{series:?}");
}
