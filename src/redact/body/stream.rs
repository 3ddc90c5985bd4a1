//! Secrets that a stream of server-sent events carries in pieces.
//!
//! Each event's JSON is walked for the strings that deltas stand in. Strings of the same place in the same choice, tool
//! call or content block are one lane; a lane's strings, still escaped, are joined and searched as one text, and each
//! mask goes back to where its pieces came from. No API is named here: a place is the path of its keys, told apart by the
//! numbers and types that stand beside it.

use std::collections::HashMap;
use std::ops::Range;

use super::cover::Cover;
use super::{Class, Masks, scan, shape};
use crate::alike::Template;

/// Keys whose strings continue from event to event.
const CONTINUED: [&[u8]; 9] = [
    b"content",
    b"text",
    b"delta",
    b"arguments",
    b"partial_json",
    b"reasoning_content",
    b"reasoning",
    b"thinking",
    b"refusal",
];
/// Keys whose numbers and strings tell places with the same path apart.
const APART: [&[u8]; 6] =
    [b"index", b"output_index", b"content_index", b"summary_index", b"item_id", b"type"];
/// A word this long is looked at by itself: what stands before it in the joined text may hide where a secret begins.
const LONG_WORD: usize = 16;
/// Deeper JSON is not walked.
const MAX_DEPTH: usize = 32;

/// What was found across events.
pub struct Across {
    /// The rule, where a piece lies in the body, and the mask for it.
    pub pieces: Vec<(usize, Range<usize>, Vec<u8>)>,
    pub complete: bool,
    /// What of the body is to be looked at as it is: all but events that are like the one before but for a word.
    pub new: Vec<Range<usize>>,
}

/// The joined strings of one place.
#[derive(Default)]
struct Lane {
    text: Vec<u8>,
    /// Where each string begins in `text`, and in the body.
    parts: Vec<(usize, usize)>,
}

pub fn find(masks: &Masks, key: &[u8; 32], body: &[u8], class: Class) -> Across {
    let Lanes { lanes, new } = lanes(body);
    let mut across = Across { pieces: Vec::new(), complete: true, new };
    // A lane of one string is found by looking at the body as it is.
    for lane in lanes.values().filter(|lane| lane.parts.len() > 1) {
        let mut covered = Cover::default();
        let growing = lane.last_where_growing();
        // The second of two strings may begin with the first and yet go on from it.
        let joined = growing.is_none() || lane.parts.len() == 2;
        let joined = joined.then_some((0..lane.text.len(), false));
        for (part, from_the_beginning) in growing.map(|last| (last, true)).into_iter().chain(joined) {
            let text = &lane.text[part];
            let found = scan::find(masks, text, class);
            across.complete &= found.complete;
            for find in found.finds {
                let mut secret = text[find.range.clone()].to_vec();
                shape::mask(key, &mut secret);
                let pieces: Vec<_> = match from_the_beginning {
                    true => lane.beginnings(find.range, &secret).collect(),
                    false => lane.pieces(find.range, &secret).collect(),
                };
                for (range, mask) in pieces {
                    across.take(find.rule, &range, &mask, &covered);
                    covered.add(range);
                }
            }
        }
    }
    across
}

impl Across {
    /// Takes what of a piece is not covered yet.
    fn take(&mut self, rule: usize, range: &Range<usize>, mask: &[u8], covered: &Cover) {
        for left in covered.outside(range.clone()) {
            let share = mask[left.start - range.start..left.end - range.start].to_vec();
            self.pieces.push((rule, left, share));
        }
    }
}

impl Lane {
    /// Each string of the lane: where it is in `text`, and where it begins in the body.
    fn strings(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        let ends = self.parts.iter().skip(1).map(|(at, _)| *at).chain([self.text.len()]);
        self.parts.iter().zip(ends).map(|((at, body), end)| (*at..end, *body))
    }

    /// The last string, where each begins with the one before: such events say everything from the beginning.
    fn last_where_growing(&self) -> Option<Range<usize>> {
        let strings: Vec<Range<usize>> = self.strings().map(|(range, _)| range).collect();
        let grows =
            |pair: &[Range<usize>]| self.text[pair[1].clone()].starts_with(&self.text[pair[0].clone()]);
        strings.windows(2).all(grows).then(|| strings.last().cloned()).flatten()
    }

    /// The places in the body of what each string has of a range of the last one, with its share of the mask.
    fn beginnings(&self, range: Range<usize>, mask: &[u8]) -> impl Iterator<Item = (Range<usize>, Vec<u8>)> {
        self.strings().filter_map(move |(string, body)| {
            let end = range.end.min(string.len());
            let known = end.checked_sub(range.start).filter(|known| *known > 0)?;
            Some((body + range.start..body + end, mask[..known].to_vec()))
        })
    }

    /// The places in the body that a range of the text came from, each with its share of the mask.
    fn pieces(&self, range: Range<usize>, mask: &[u8]) -> impl Iterator<Item = (Range<usize>, Vec<u8>)> {
        let first = self.parts.partition_point(|(at, _)| *at <= range.start).saturating_sub(1);
        let ends = self.parts[first + 1..].iter().map(|(at, _)| *at).chain([self.text.len()]);
        let parts = self.parts[first..].iter().zip(ends).take_while(move |((at, _), _)| *at < range.end);
        let start = range.start;
        parts.filter_map(move |((at, body), end)| {
            let (from, to) = (start.max(*at), range.end.min(end));
            (from < to).then(|| (body + from - at..body + to - at, mask[from - start..to - start].to_vec()))
        })
    }
}

/// The lanes of a stream, and what of it has to be looked at by itself.
#[derive(Default)]
struct Lanes {
    lanes: HashMap<u64, Lane>,
    new: Vec<Range<usize>>,
}

fn lanes(body: &[u8]) -> Lanes {
    let mut found = Lanes::default();
    let mut last: Option<(Template, u64)> = None;
    let (mut at, mut seen) = (0, 0);
    while at < body.len() {
        let end = memchr::memchr2(b'\n', b'\r', &body[at..]).map_or(body.len(), |step| at + step);
        if let Some(payload) = body[at..end].strip_prefix(b"data:") {
            let start = end - payload.len();
            let word = last.as_ref().and_then(|(template, place)| Some((template.word(payload)?, *place)));
            if let Some((word, place)) = word {
                // The event before was looked at whole, so only the word is new here.
                found.new.push(seen..at);
                let word = start + word.start..start + word.end;
                if word.len() >= LONG_WORD {
                    found.new.push(word.clone());
                }
                found.add(place, body, word);
                seen = end;
            } else {
                last = found.walk(body, start, end);
            }
        }
        at = end + 1;
    }
    found.new.push(seen..body.len());
    found.new.retain(|range| range.len() > 2);
    found
}

impl Lanes {
    fn add(&mut self, place: u64, body: &[u8], range: Range<usize>) {
        let lane = self.lanes.entry(place).or_default();
        lane.parts.push((lane.text.len(), range.start));
        lane.text.extend_from_slice(&body[range]);
    }

    /// Takes the strings of one event. Returns what the next may be like, where it has one string.
    fn walk(&mut self, body: &[u8], start: usize, end: usize) -> Option<(Template, u64)> {
        let mut walk = Walk { body, at: start, end, objects: Vec::new(), leaves: Vec::new() };
        walk.value(None, b"", 0)?;
        let strings = walk.strings();
        for (place, range) in &strings {
            self.add(*place, body, range.clone());
        }
        let [(place, range)] = strings.as_slice() else { return None };
        Some((Template::new(&body[start..end], range.start - start..range.end - start)?, *place))
    }
}

/// An object of an event: where it stands, and what tells it from others there.
struct Object {
    parent: Option<usize>,
    place: u64,
}

/// A pass over the JSON of one event.
struct Walk<'a> {
    body: &'a [u8],
    at: usize,
    end: usize,
    objects: Vec<Object>,
    /// The object a string stands in, its key, and where its characters are.
    leaves: Vec<(Option<usize>, u64, Range<usize>)>,
}

impl<'a> Walk<'a> {
    /// The strings that go on from event to event, each with the number of its place.
    fn strings(self) -> Vec<(u64, Range<usize>)> {
        let place = |mut next: Option<usize>, key: u64| {
            let mut place = key;
            while let Some(object) = next {
                place = mix(place, &self.objects[object].place.to_le_bytes());
                next = self.objects[object].parent;
            }
            place
        };
        self.leaves.iter().map(|(object, key, range)| (place(*object, *key), range.clone())).collect()
    }

    fn peek(&mut self) -> Option<u8> {
        while self.at < self.end && self.body[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
        self.body[..self.end].get(self.at).copied()
    }

    fn eat(&mut self, wanted: u8) -> Option<()> {
        let found = self.peek()? == wanted;
        self.at += usize::from(found);
        found.then_some(())
    }

    /// Walks one value; `None` where it is no JSON.
    fn value(&mut self, object: Option<usize>, key: &'a [u8], depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match self.peek()? {
            b'{' => self.object(object, key, depth),
            b'[' => self.array(object, key, depth),
            b'"' => {
                let range = self.string()?;
                if CONTINUED.contains(&key) && !range.is_empty() {
                    self.leaves.push((object, mix(0, key), range.clone()));
                }
                self.note(object, key, range);
                Some(())
            }
            _ => {
                let start = self.at;
                let rest = &self.body[start..self.end];
                self.at += rest.iter().take_while(|byte| !b",]} \t".contains(byte)).count();
                self.note(object, key, start..self.at);
                (self.at > start).then_some(())
            }
        }
    }

    /// Takes a value that tells its object apart.
    fn note(&mut self, object: Option<usize>, key: &[u8], range: Range<usize>) {
        if let Some(object) = object.filter(|_| APART.contains(&key)) {
            // Added up, so that the order of the keys is of no matter.
            let told = mix(mix(0, key), &self.body[range]);
            self.objects[object].place = self.objects[object].place.wrapping_add(told);
        }
    }

    fn object(&mut self, parent: Option<usize>, key: &'a [u8], depth: usize) -> Option<()> {
        let own = self.objects.len();
        self.objects.push(Object { parent, place: mix(0, key) });
        self.eat(b'{')?;
        if self.eat(b'}').is_some() {
            return Some(());
        }
        loop {
            self.peek().filter(|byte| *byte == b'"')?;
            let body = self.body;
            let name = &body[self.string()?];
            self.eat(b':')?;
            self.value(Some(own), name, depth + 1)?;
            if self.eat(b',').is_none() {
                return self.eat(b'}');
            }
        }
    }

    fn array(&mut self, object: Option<usize>, key: &'a [u8], depth: usize) -> Option<()> {
        self.eat(b'[')?;
        if self.eat(b']').is_some() {
            return Some(());
        }
        loop {
            self.value(object, key, depth + 1)?;
            if self.eat(b',').is_none() {
                return self.eat(b']');
            }
        }
    }

    /// Passes a string and returns where its characters are, between the quotes.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at + 1;
        let mut at = start;
        loop {
            at += memchr::memchr2(b'"', b'\\', self.body.get(at..self.end)?)?;
            if self.body[at] == b'"' {
                self.at = at + 1;
                return Some(start..at);
            }
            at += 2;
        }
    }
}

/// FNV-1a: places are few, and two that fall together only join two texts.
fn mix(seed: u64, bytes: &[u8]) -> u64 {
    bytes.iter().chain(&[0xff]).fold(seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
