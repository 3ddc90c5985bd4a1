//! A conversation as a tree: what goes on stands below, what forks off, repeats or begins anew stands to the right.

use std::collections::HashMap;
use std::fmt::Write;

use super::message::{self, Speech};
use super::wrap::{columns, wrapped};
use super::{count, line_of};
use crate::conversation::stitch::Kind;
use crate::conversation::view::{Session, Turn, TurnLine};

/// How a conversation is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether long messages are shown whole.
    pub full: bool,
}

/// Forks of forks are set off so often; those below stand at the same place, and say whose they are.
const DEEPEST: usize = 8;
/// Lines of a message, unless all of it is wanted.
const LINES: usize = 6;
/// The narrowest text that is still one.
const NARROWEST: usize = 24;
/// The widest that is still read with ease.
const WIDEST: usize = 96;
/// Between the name of who speaks and what was said.
const ROLE: usize = 11;

/// Draws a conversation.
pub fn show(session: &Session, look: Look) -> String {
    let mut text = String::new();
    heading(&mut text, session, look);
    let (forest, places) = (Forest::of(session), Places::of(session));
    let mut waiting: Vec<Branch> = forest.roots.iter().rev().map(|at| Branch::root(*at)).collect();
    let mut above = None;
    while let Some(branch) = waiting.pop() {
        let turn = &session.turns[branch.at];
        let Children { on, aside } = &forest.children[branch.at];
        let _ = writeln!(text, "{}", branch.above);
        let rail = if on.is_some() || !aside.is_empty() { "│ " } else { "  " };
        let out =
            Paper { text: &mut text, first: &branch.lead, rest: &format!("{}{rail}", branch.prefix), look };
        draw(out, session, branch.at, &places, above);
        above = Some(turn.line.id.as_str());
        waiting.extend(on.map(|at| branch.next(at)));
        for (left, at) in (usize::from(on.is_some())..).zip(aside.iter().rev()) {
            waiting.push(branch.fork(*at, left > 0));
        }
    }
    text
}

fn heading(text: &mut String, session: &Session, look: Look) {
    let turns = &session.turns;
    let forks = turns.iter().filter(|turn| Kind::of_name(turn.line.kind).forks()).count();
    let mut parts =
        vec![format!("conversation {}", line_of(&session.id)), count(turns.len(), "turn", "turns")];
    if forks > 0 {
        parts.push(count(forks, "branch", "branches"));
    }
    if let (Some(first), Some(last)) = (turns.first(), turns.iter().map(|turn| &turn.line.ended).max()) {
        let begun = clock_time(&first.line.started, None);
        parts.push(format!("{begun} to {} UTC", clock_time(last, Some(&first.line.started))));
    }
    joined(text, &parts, "", "  ", look.width);
}

/// Where a turn is drawn.
#[derive(Clone, Default)]
struct Branch {
    at: usize,
    depth: usize,
    /// On the line above it, before its first line, and before all others of its level.
    above: String,
    lead: String,
    prefix: String,
}

impl Branch {
    fn root(at: usize) -> Branch {
        Branch { at, ..Branch::default() }
    }

    /// The turn below this one.
    fn next(&self, at: usize) -> Branch {
        let above = format!("{}│", self.prefix);
        Branch { at, above, lead: self.prefix.clone(), ..self.clone() }
    }

    /// A turn to the right of this one; `more` comes below it.
    fn fork(&self, at: usize, more: bool) -> Branch {
        if self.depth == DEEPEST {
            return self.next(at);
        }
        let (corner, rail) = if more { ("├─", "│ ") } else { ("└─", "  ") };
        let (lead, prefix) = (format!("{}{corner}", self.prefix), format!("{}{rail}", self.prefix));
        Branch { at, depth: self.depth + 1, above: format!("{}│", self.prefix), lead, prefix }
    }
}

/// What comes after each turn.
struct Forest {
    roots: Vec<usize>,
    children: Vec<Children>,
}

#[derive(Clone, Default)]
struct Children {
    /// The turn that goes on.
    on: Option<usize>,
    aside: Vec<usize>,
}

impl Forest {
    fn of(session: &Session) -> Forest {
        let places: HashMap<&str, usize> =
            session.turns.iter().zip(0..).map(|(turn, at)| (turn.line.id.as_str(), at)).collect();
        let mut forest =
            Forest { roots: Vec::new(), children: vec![Children::default(); session.turns.len()] };
        for (at, turn) in session.turns.iter().enumerate() {
            // A parent comes first; one that does not, or is not there, has no children here.
            let parent =
                turn.line.parent.as_deref().and_then(|id| places.get(id)).filter(|place| **place < at);
            let Some(parent) = parent else {
                forest.roots.push(at);
                continue;
            };
            let goes_on =
                matches!(Kind::of_name(turn.line.kind), Kind::Append | Kind::Window | Kind::Resumed);
            let children = &mut forest.children[*parent];
            match children.on {
                None if goes_on => children.on = Some(at),
                _ => children.aside.push(at),
            }
        }
        forest
    }
}

/// The number of each turn, counted from 1.
struct Places<'a>(HashMap<&'a str, usize>);

impl<'a> Places<'a> {
    fn of(session: &'a Session) -> Places<'a> {
        Places(session.turns.iter().zip(1..).map(|(turn, place)| (turn.line.id.as_str(), place)).collect())
    }
}

/// What is drawn on: a first line begins otherwise than those below it.
struct Paper<'a> {
    text: &'a mut String,
    first: &'a str,
    rest: &'a str,
    look: Look,
}

fn draw(out: Paper<'_>, session: &Session, at: usize, places: &Places<'_>, above: Option<&str>) {
    let Paper { text, first, rest, look } = out;
    let turn = &session.turns[at];
    let before = at.checked_sub(1).map(|at| &session.turns[at].line);
    let number = places.0.get(turn.line.id.as_str()).copied().unwrap_or(at + 1);
    let mut parts = vec![format!("● {number}  {}", kind(&turn.line, places, above))];
    parts.extend(facts(&turn.line, before));
    joined(text, &parts, first, &format!("{rest}   "), look.width);
    let mut parts = vec![line_of(&turn.line.id)];
    let carried = turn.request.as_ref().map_or(0, |request| request.carried as usize);
    if carried > 0 {
        parts.push(format!("{} from before", count(carried, "message", "messages")));
    }
    if !turn.line.flags.is_empty() {
        parts.push(format!("flags {}", turn.line.flags.join(", ")));
    }
    joined(text, &parts, &format!("{rest}   "), &format!("{rest}   "), look.width);
    for speech in said(turn) {
        speak(text, &speech, rest, look);
    }
}

fn kind(line: &TurnLine, places: &Places<'_>, above: Option<&str>) -> String {
    let parent = line.parent.as_deref().filter(|parent| Some(*parent) != above);
    let parent = parent.and_then(|parent| places.0.get(parent));
    let of = parent.map_or_else(String::new, |place| format!(" of {place}"));
    format!("{}{of}", line.kind.replace('_', "-"))
}

/// What happened, without what was as in the turn before.
fn facts(line: &TurnLine, before: Option<&TurnLine>) -> Vec<String> {
    let mut parts = vec![clock_time(&line.started, before.map(|before| before.started.as_str()))];
    let status = if line.status == 0 { "no answer".to_owned() } else { line.status.to_string() };
    parts.push(format!("{status} {}", line_of(&line.end)));
    parts.push(format!("{:.2} s", line.micros as f64 / 1e6));
    let tokens = &line.tokens;
    if tokens.prompt.is_some() || tokens.output.is_some() {
        let number = |count: Option<u64>| count.map_or_else(|| "?".to_owned(), |count| count.to_string());
        let cached = tokens.cached.filter(|cached| *cached > 0);
        let cached = cached.map_or_else(String::new, |cached| format!(" ({cached} cached)"));
        parts.push(format!("{}{cached} → {} tokens", number(tokens.prompt), number(tokens.output)));
    }
    if before.is_none_or(|before| before.model != line.model || before.served_by != line.served_by) {
        parts.extend(
            [line_of(&line.model), line_of(&line.served_by)].into_iter().filter(|part| !part.is_empty()),
        );
    }
    parts
}

/// A moment to the second; its day where that is another than the one before.
fn clock_time(moment: &str, before: Option<&str>) -> String {
    match (moment.split_once('T'), before.and_then(|before| before.split_once('T'))) {
        (Some((day, time)), Some((same, _))) if day == same => time.get(..8).unwrap_or(time).to_owned(),
        (Some((day, time)), _) => format!("{day} {}", time.get(..8).unwrap_or(time)),
        (None, _) => "no time".to_owned(),
    }
}

fn said(turn: &Turn) -> Vec<Speech> {
    let mut said = match &turn.request {
        Some(request) => message::of_request(request),
        None => vec![Speech::note("the request was not kept whole, or is none of a conversation")],
    };
    said.extend(message::of_response(&turn.response));
    said
}

fn speak(text: &mut String, speech: &Speech, rest: &str, look: Look) {
    let Speech { role, content } = speech;
    let role = line_of(role);
    let room = look.width.saturating_sub(columns(rest) + 3 + ROLE).clamp(NARROWEST, WIDEST);
    let mut lines = wrapped(content.trim_end(), room);
    let left_out = if look.full { 0 } else { lines.len().saturating_sub(LINES) };
    // A note takes a line itself: one line is not left out for it.
    let left_out = if left_out == 1 { 0 } else { left_out };
    let characters: usize = lines.drain(lines.len() - left_out..).map(|line| line.chars().count()).sum();
    if left_out > 0 {
        lines.push(format!("… {left_out} more lines, {characters} characters; --full shows them"));
    }
    let mut name = role.as_str();
    if columns(name) >= ROLE {
        let _ = writeln!(text, "{rest}   {name}");
        name = "";
    }
    for line in &lines {
        let pad = " ".repeat(ROLE.saturating_sub(columns(name)));
        let _ = writeln!(text, "{}", format!("{rest}   {name}{pad}{line}").trim_end());
        name = "";
    }
}

/// Parts with a dot between them, on as many lines as they need.
fn joined(text: &mut String, parts: &[String], first: &str, rest: &str, width: usize) {
    let mut line = first.to_owned();
    let mut empty = true;
    for part in parts {
        if !empty && columns(&line) + 3 + columns(part) > width {
            let _ = writeln!(text, "{} ·", line.trim_end());
            line = rest.to_owned();
            empty = true;
        }
        if !empty {
            line.push_str(" · ");
        }
        line.push_str(part);
        empty = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}
