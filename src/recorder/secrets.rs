//! Masks secrets in bodies before anything of them is kept or read.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use crate::journal::record::{Capture, Exchange};
use crate::openai::outline::{Name, Outline};
use crate::openai::{coding, sse};
use crate::recent::Recent;
use crate::redact::body::{Class, Masked, Masks};

/// The rules, compiled once, and what they need not look at again.
pub struct Secrets {
    masks: Masks,
    clean: Recent<Name, ()>,
}

/// A body of which nobody can say that it holds no secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opaque;

impl Secrets {
    /// Remembers at most so many parts of requests as holding no secret.
    pub fn new(parts: usize) -> Self {
        Secrets { masks: Masks::standard(), clean: Recent::new(parts) }
    }

    /// Masks both bodies, and notes the hash of each that was changed. Returns the outline of the request's body as it is
    /// now.
    ///
    /// # Errors
    /// [`Opaque`] where a body cannot be looked through: it is in a coding that is not known, cut in the middle of one, or
    /// made to cost. It must not be kept.
    pub fn mask(&mut self, key: &[u8; 32], exchange: &mut Exchange) -> Result<Outline, Opaque> {
        let (request, outline) = self.request(key, exchange)?;
        let response = self.response(key, exchange)?;
        let kept = |body: &Bytes, capture| match capture {
            Capture::Whole => Bytes::copy_from_slice(blake3::hash(body).as_bytes()),
            _ => Bytes::new(),
        };
        if let Some(body) = request {
            exchange.request_kept_hash = kept(&body, exchange.request_capture());
            exchange.request_body = body;
        }
        if let Some(body) = response {
            exchange.response_kept_hash = kept(&body, exchange.response_capture());
            if body.len() != exchange.response_body.len() {
                // Of a body that was packed anew nobody knows in which pieces it came.
                exchange.edge_lengths.clear();
                exchange.edge_micros.clear();
            }
            exchange.response_body = body;
        }
        Ok(outline)
    }

    /// The request's body where it is to be changed, and the outline of what it is then. Most of it was there in the
    /// request before, and is not looked through again.
    fn request(&mut self, key: &[u8; 32], exchange: &Exchange) -> Result<(Option<Bytes>, Outline), Opaque> {
        if exchange.request_body.is_empty() {
            return Ok((None, Outline::default()));
        }
        let coded = exchange.request_header("content-encoding");
        let plain = coding::decode(coded, &exchange.request_body).ok_or(Opaque)?;
        let outline = Outline::of(&plain);
        let (mut unknown, mut names, mut at) = (Vec::new(), Vec::new(), 0);
        for (range, name) in outline.parts() {
            unknown.push(at..range.start);
            at = range.end;
            if self.clean.get(&name).is_none() {
                unknown.push(range.clone());
                names.push((range, name));
            }
        }
        unknown.push(at..plain.len());
        let found = self.masks.mask_parts(key, &plain, Class::Secret, &unknown);
        self.note(names, found.as_ref());
        let changed = encoded(coded, found)?;
        let outline = match (&changed, plain) {
            (None, Cow::Borrowed(_)) => outline,
            (changed, _) => Outline::of(changed.as_ref().unwrap_or(&exchange.request_body)),
        };
        Ok((changed, outline))
    }

    /// Notes the parts in which nothing was found.
    fn note(&mut self, parts: Vec<(Range<usize>, Name)>, found: Option<&Masked>) {
        if found.is_some_and(|masked| !masked.complete) {
            return;
        }
        let finds = found.map_or(&[][..], |masked| &masked.found);
        for (range, name) in parts {
            let next = finds.partition_point(|(_, find)| find.start < range.start);
            if finds.get(next).is_none_or(|(_, find)| find.start >= range.end) {
                self.clean.insert(name, ());
            }
        }
    }

    /// The response's body where it is to be changed.
    fn response(&self, key: &[u8; 32], exchange: &Exchange) -> Result<Option<Bytes>, Opaque> {
        if exchange.response_body.is_empty() {
            return Ok(None);
        }
        let coded = exchange.response_header("content-encoding");
        let plain = coding::decode(coded, &exchange.response_body).ok_or(Opaque)?;
        let found = match sse::is_stream(exchange.response_header("content-type")) {
            true => self.masks.mask_stream(key, &plain, Class::Secret),
            false => self.masks.mask(key, &plain, Class::Secret),
        };
        encoded(coded, found)
    }
}

/// What was masked in the coding that it came in.
fn encoded(coded: Option<&[u8]>, found: Option<Masked>) -> Result<Option<Bytes>, Opaque> {
    let Some(Masked { bytes, complete, .. }) = found else { return Ok(None) };
    if !complete {
        return Err(Opaque);
    }
    coding::encode(coded, bytes).map(|bytes| Some(bytes.into())).ok_or(Opaque)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Header;

    const SECRET: &str = "ghp_TCpcqAB0udIGAxjsRgqqCEGV0pyS6zTA8AR2";

    fn exchange(coded: &str, request: Vec<u8>) -> Exchange {
        let header = |name: &str, value: &str| Header { name: name.into(), value: value.to_owned().into() };
        let mut exchange = Exchange { request_body: request.into(), ..Exchange::default() };
        if !coded.is_empty() {
            exchange.request_headers.push(header("content-encoding", coded));
        }
        exchange.response_headers.push(header("Content-Type", "text/event-stream"));
        exchange.response_body = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\ndata: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
            &SECRET[..20],
            &SECRET[20..]
        )
        .into();
        exchange.edge_lengths = vec![exchange.response_body.len() as u32];
        exchange
    }

    #[test]
    fn both_bodies_are_masked_in_whatever_coding() {
        let mut secrets = Secrets::new(100);
        let body = format!(r#"{{"messages":[{{"role":"user","content":"my key is {SECRET}"}}]}}"#);
        let packed = zstd::bulk::compress(body.as_bytes(), 3).expect("compresses");
        for (coded, sent) in [("", body.clone().into_bytes()), ("zstd", packed)] {
            let mut one = exchange(coded, sent.clone());
            secrets.mask(&[1; 32], &mut one).expect("is looked through");
            let header = one.request_header("content-encoding");
            let kept = coding::decode(header, &one.request_body).expect("decodes");
            let text = String::from_utf8_lossy(&kept);
            assert!(!text.contains(&SECRET[4..]) && text.contains("my key is ghp_"), "{text}");
            assert_eq!(one.request_kept_hash, blake3::hash(&one.request_body).as_bytes().as_slice());
            let answer = String::from_utf8_lossy(&one.response_body).into_owned();
            assert!(!answer.contains(&SECRET[4..20]) && !answer.contains(&SECRET[20..]), "{answer}");
            assert!(!one.edge_lengths.is_empty() && !one.response_kept_hash.is_empty());
        }
    }

    /// A part without a secret is not looked through again; one with a secret is, each time.
    #[test]
    fn a_secret_in_the_history_is_masked_in_every_turn() {
        let mut secrets = Secrets::new(100);
        let filler = "nothing to hide here, ".repeat(20);
        let message = |role: &str, text: &str| format!(r#"{{"role":"{role}","content":"{filler}{text}"}}"#);
        let history = [message("user", SECRET), message("assistant", ""), message("user", SECRET)];
        for messages in 1..=history.len() {
            let body = format!(r#"{{"messages":[{}]}}"#, history[..messages].join(","));
            let names: Vec<Name> = Outline::of(body.as_bytes()).parts().map(|(_, name)| name).collect();
            let mut one = exchange("", body.into_bytes());
            let outline = secrets.mask(&[1; 32], &mut one).expect("is looked through");
            let kept = String::from_utf8_lossy(&one.request_body).into_owned();
            assert!(!kept.contains(&SECRET[4..]), "{kept}");
            assert_eq!(outline, Outline::of(&one.request_body));
            let clean: Vec<bool> = names.iter().map(|name| secrets.clean.get(name).is_some()).collect();
            assert_eq!(clean, [false, true, false][..messages]);
        }
    }

    #[test]
    fn what_holds_no_secret_stays_and_what_cannot_be_read_is_told() {
        let mut secrets = Secrets::new(100);
        let mut one = exchange("", b"{\"messages\":[]}".to_vec());
        one.response_body = Bytes::new();
        let before = one.clone();
        assert_eq!(secrets.mask(&[1; 32], &mut one), Ok(Outline::default()));
        assert_eq!(one, before);
        let mut coded = exchange("br", b"anything".to_vec());
        assert_eq!(secrets.mask(&[1; 32], &mut coded), Err(Opaque));
    }
}
