//! What people ask for when they list conversations, in their own words.

use super::flags::{Flags, VERDICT};
use super::index::{Cursor, Filter};
use crate::units::Span;

/// A filter as it was written on a command line or in a query.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// RFC 3339, or a span before now.
    pub since: Option<String>,
    pub until: Option<String>,
    /// A name, or the beginning of one and `*`.
    pub model: Option<String>,
    pub upstream: Option<String>,
    pub flags: Vec<String>,
    pub verdicts: Vec<String>,
    /// As a list has given it out.
    pub cursor: Option<String>,
    pub limit: usize,
}

impl Asked {
    /// What it comes to.
    ///
    /// # Errors
    /// One line that says what is not understood, and what would be.
    pub fn filter(self, now_unix_nanos: u64) -> Result<Filter, String> {
        let moment = |name: &str, text: Option<String>| {
            let read = text.map(|text| moment(&text, now_unix_nanos));
            read.transpose().map_err(|error| format!("{name}: {error}"))
        };
        let verdicts = self.verdicts.iter().map(|name| format!("{VERDICT}{name}"));
        let mut flags = Flags::default();
        for name in self.flags.iter().cloned().chain(verdicts) {
            flags.0 |= Flags::of_name(&name).ok_or_else(|| unknown(&name))?.0;
        }
        Ok(Filter {
            since_unix_nanos: moment("since", self.since)?,
            until_unix_nanos: moment("until", self.until)?,
            model: self.model,
            upstream: self.upstream,
            flags,
            after: self.cursor.as_deref().map(Cursor::read).transpose()?,
            limit: self.limit,
        })
    }
}

impl Cursor {
    /// As it is given out, to be read by [`Asked::filter`].
    pub fn text(&self) -> String {
        format!("{}.{}", self.ended_unix_nanos, self.id)
    }

    fn read(cursor: &str) -> Result<Cursor, String> {
        let parts = cursor.split_once('.').and_then(|(nanos, id)| Some((nanos.parse().ok()?, id)));
        let (ended_unix_nanos, id) = parts
            .ok_or_else(|| format!("cursor: {cursor:?} is none; take the one that the list before gave"))?;
        Ok(Cursor { ended_unix_nanos, id: id.to_owned() })
    }
}

fn unknown(name: &str) -> String {
    let (what, bare) = match name.strip_prefix(VERDICT) {
        Some(bare) => ("verdict", bare),
        None => ("flag", name),
    };
    let known: Vec<&str> = match what {
        "verdict" => Flags::all().filter_map(|known| known.strip_prefix(VERDICT)).collect(),
        _ => Flags::all().collect(),
    };
    match known.is_empty() {
        true => format!("{what}: {bare:?} is not known here; this version records none"),
        false => format!("{what}: {bare:?} is not known here; it is one of {}", known.join(", ")),
    }
}

/// A moment: in RFC 3339, or a span that has passed since.
fn moment(text: &str, now_unix_nanos: u64) -> Result<u64, String> {
    if let Ok(span) = text.parse::<Span>() {
        return Ok(now_unix_nanos.saturating_sub(span.0.as_nanos() as u64));
    }
    let moment: jiff::Timestamp = text.parse().map_err(|_| {
        format!("{text:?} is no time; write it like \"2026-01-31T12:00:00Z\", or \"2h\" for two hours ago")
    })?;
    // Before 1970 nothing was recorded.
    Ok(u64::try_from(moment.as_nanosecond()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_moments_or_spans_before_now() {
        let now = 1_764_633_600_000_000_000;
        let second = 1_000_000_000;
        assert_eq!(moment("2025-12-02T00:00:00Z", now), Ok(now));
        assert_eq!(moment("2025-12-02T01:00:00.5+01:00", now), Ok(now + second / 2));
        assert_eq!(moment("2h", now), Ok(now - 7200 * second));
        assert_eq!(moment("3d", now), Ok(now - 3 * 86_400 * second));
        assert_eq!(moment("1960-01-01T00:00:00Z", now), Ok(0));
        for text in ["yesterday", "", "2025-12-02", "2 parsecs", "-1h"] {
            let error = moment(text, now).expect_err("is no time");
            assert!(error.contains("write it like") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_name_that_is_not_known_is_answered_with_those_that_are() {
        let asked = Asked { flags: vec!["error".into(), "invented".into()], ..Asked::default() };
        let error = asked.filter(0).expect_err("is not known");
        assert!(error.contains("\"invented\"") && Flags::all().all(|name| error.contains(name)), "{error}");
        let asked = Asked { verdicts: vec!["invented".into()], ..Asked::default() };
        let error = asked.filter(0).expect_err("is not known");
        assert!(error.starts_with("verdict: \"invented\" is not known"), "{error}");
        let asked = Asked { flags: vec!["error".into(), "masked".into()], ..Asked::default() };
        let flags = asked.filter(0).expect("are known").flags;
        assert_eq!(flags.names(), ["error", "masked"]);
    }

    #[test]
    fn a_cursor_is_read_as_it_was_given() {
        let place = Cursor { ended_unix_nanos: 12, id: "a.b".into() };
        assert_eq!(Cursor::read(&place.text()), Ok(place));
        assert!(Cursor::read("x").expect_err("is none").contains("take the one"));
    }
}
