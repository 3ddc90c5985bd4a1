//! When a certificate expires: the one date in it that an operator must know, found by walking its outermost fields.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Seconds since the Unix epoch after which the certificate (DER) is no longer valid.
pub fn not_after(certificate: &[u8]) -> Option<i64> {
    let mut outer = certificate;
    let mut certificate = take(&mut outer, SEQUENCE)?;
    let mut fields = take(&mut certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        take(&mut fields, VERSION)?;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        element(&mut fields)?;
    }
    let mut validity = take(&mut fields, SEQUENCE)?;
    element(&mut validity)?;
    let (tag, text) = element(&mut validity)?;
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i16 = year.parse().ok()?;
            // Two digits mean 1950 to 2049 (RFC 5280, 4.1.2.5.1).
            seconds(if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            seconds(year.parse().ok()?, rest)
        }
        _ => None,
    }
}

/// `MMDDhhmmss` of a year.
fn seconds(year: i16, rest: &str) -> Option<i64> {
    let two = |at: usize| rest.get(at..at + 2)?.parse::<i8>().ok();
    let (month, day, hour, minute, second) = (two(0)?, two(2)?, two(4)?, two(6)?, two(8)?);
    let time = DateTime::new(year, month, day, hour, minute, second, 0).ok()?;
    TimeZone::UTC.to_timestamp(time).ok().map(|time| time.as_second())
}

/// Takes the next element, which must have this tag; its content.
fn take<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    element(from).filter(|(found, _)| *found == tag).map(|(_, content)| content)
}

/// Takes the next element: its tag and content.
fn element<'a>(from: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = from.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let digits = usize::from(first & 0x7f);
        // Four bytes of length are more than any certificate has.
        if !(1..=4).contains(&digits) || rest.len() < digits {
            return None;
        }
        length = rest[..digits].iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
        rest = &rest[digits..];
    }
    let (content, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some((tag, content))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["a.test".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(year, month, day);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn both_forms_of_a_date_are_read() {
        assert_eq!(not_after(&made(2031, 5, 17)), Some(date(2031, 5, 17)));
        assert_eq!(not_after(&made(2094, 12, 1)), Some(date(2094, 12, 1)));
    }

    fn date(year: i16, month: i8, day: i8) -> i64 {
        TimeZone::UTC.to_timestamp(DateTime::new(year, month, day, 0, 0, 0, 0).unwrap()).unwrap().as_second()
    }

    #[test]
    fn a_cut_or_damaged_certificate_has_no_date_and_harms_nobody() {
        let whole = made(2031, 5, 17);
        for end in 0..150.min(whole.len()) {
            assert_eq!(not_after(&whole[..end]), None, "cut at {end}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0xff;
            let _ = not_after(&damaged);
        }
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
