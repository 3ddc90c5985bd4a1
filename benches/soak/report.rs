//! One table, and what in it is wrong.

use std::fmt::Write;

use crate::rounds::{Outcome, Rest};

/// Files that may be open more at rest in the last third than in the first: connections that are kept for reuse.
const FILES_SLACK: usize = 16;
/// Memory that may be resident more: the allocator keeps what it had at the peak, and the peak is chance.
const RSS_SLACK_KIB: u64 = 16 * 1024;
/// What the recorder remembers to link later turns to: so many of them, about a kibibyte each.
const REMEMBERED_TURNS: f64 = 50_000.0;
/// The recorder must notice at least this share of the disk's faults: one may pass between two writes.
const NOTICED: f64 = 0.5;
/// At most this share of the exchanges may leave no record: what comes in a fault waits in memory, and no fault is long.
const DROPPED: f64 = 0.05;

pub fn table(outcome: &Outcome) -> String {
    let mut text = String::new();
    let Outcome { options, counts, past, log, .. } = outcome;
    let _ = writeln!(
        text,
        "soak: {} s, seed {}, {} clients; {} restarts of the upstream, {} faults of the disk ({} noticed), {} reloads",
        options.seconds,
        options.seed,
        options.clients,
        past.restarts,
        past.disk_faults,
        log.disk_errors,
        past.reloads
    );
    let _ = writeln!(
        text,
        "\n| at rest after round | clients' exchanges | proxied | ledger | in flight | dropped | files (peak) | RSS, MiB |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|---|---|");
    for (number, rest) in outcome.rests.iter().enumerate() {
        let Rest { exchanges, proxied, ledger, in_flight, dropped, size, peak_files, .. } = rest;
        let rss = size.rss_kib as f64 / 1024.0;
        let _ = writeln!(
            text,
            "| {} | {exchanges} | {proxied} | {ledger} | {in_flight} | {dropped} | {} ({peak_files}) | {rss:.1} |",
            number + 1,
            size.files
        );
    }
    let _ = writeln!(text, "\n| what clients saw | times |\n|---|---|");
    for (what, times) in &counts.seen {
        let _ = writeln!(text, "| {what} | {times} |");
    }
    let _ = writeln!(
        text,
        "\n{} answers verified by digest ({} MiB), {} requests reached the upstream, {} conversations listed, {} log lines\n",
        counts.bodies_verified,
        counts.bytes_verified >> 20,
        outcome.upstream_requests,
        outcome.sessions,
        log.lines
    );
    text
}

/// Everything that should not be.
pub fn findings(outcome: &Outcome) -> Vec<String> {
    let mut found: Vec<String> = outcome.counts.wrong.clone();
    if outcome.counts.wrongs > found.len() as u64 {
        found.push(format!("and {} more of the kind", outcome.counts.wrongs - found.len() as u64));
    }
    for (number, rest) in outcome.rests.iter().enumerate() {
        found.extend(left_over(rest).map(|what| format!("at rest after round {}: {what}", number + 1)));
    }
    found.extend(growth(&outcome.rests));
    found.extend(outcome.log.bad.iter().map(|line| format!("logged: {line}")));
    if outcome.malformed_passed > 0 {
        found.push(format!("{} malformed requests reached the upstream", outcome.malformed_passed));
    }
    found.extend(weather(outcome));
    if outcome.exit != Some(0) {
        found.push(format!("serin ended with {:?} after SIGTERM", outcome.exit));
    }
    if !outcome.sessions_complaint.is_empty() {
        found.push(format!("`sessions list` complains: {}", outcome.sessions_complaint));
    }
    if outcome.sessions == 0 || outcome.counts.bodies_verified == 0 {
        found.push("nothing was recorded or nothing verified: this soak proves nothing".to_owned());
    }
    found
}

/// What did not blow, or blew and was not felt: without it the soak proves less than it says.
fn weather(outcome: &Outcome) -> impl Iterator<Item = String> {
    let Outcome { past, log, options, .. } = outcome;
    let ((done, refused), rest) = (outcome.reloads, outcome.rests.last().copied().unwrap_or_default());
    let noticed = log.disk_errors as f64 >= past.disk_faults as f64 * NOTICED;
    let checks = [
        (past.failed > 0, format!("trouble could not be made or ended {} times, see above", past.failed)),
        (past.restarts == 0, "the upstream never was restarted".to_owned()),
        (past.disk_faults == 0, "the disk never failed".to_owned()),
        (options.reloads && past.reloads == 0, "nothing was reloaded".to_owned()),
        (!noticed, format!("{} of {} faults of the disk were noticed", log.disk_errors, past.disk_faults)),
        (
            refused > 0.0 || done != past.reloads as f64,
            format!("{done} of {} reloads were put in force, {refused} refused", past.reloads),
        ),
        (
            rest.dropped > rest.ledger * DROPPED,
            format!("{} of {} exchanges left no record", rest.dropped, rest.ledger),
        ),
    ];
    checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, what)| what)
}

fn left_over(rest: &Rest) -> impl Iterator<Item = String> {
    let checks = [
        (rest.in_flight != 0.0, format!("{} exchanges are in flight", rest.in_flight)),
        (
            rest.proxied != rest.ledger,
            format!("{} exchanges were proxied and {} are in the ledger", rest.proxied, rest.ledger),
        ),
        (rest.upstream_live != 0, format!("{} requests still run in the upstream", rest.upstream_live)),
        (rest.queue_bytes != 0.0, format!("{} bytes of copies are still held", rest.queue_bytes)),
    ];
    checks.into_iter().filter(|(wrong, _)| *wrong).map(|(_, what)| what)
}

/// What the last third of the rests holds more than the first, beyond the slack.
fn growth(rests: &[Rest]) -> Vec<String> {
    // Fewer where the soak ended early, which is a finding already.
    let third = rests.len() / 3;
    let (first, last) = (&rests[..third], &rests[rests.len() - third..]);
    let files = |rests: &[Rest]| rests.iter().map(|rest| rest.size.files).max().unwrap_or(0);
    let rss = |rests: &[Rest]| rests.iter().map(|rest| rest.size.rss_kib).max().unwrap_or(0);
    let threads = |rests: &[Rest]| rests.iter().map(|rest| rest.size.threads).max().unwrap_or(0);
    let mut found = Vec::new();
    if files(last) > files(first) + FILES_SLACK {
        found.push(format!("open files at rest grew from {} to {}", files(first), files(last)));
    }
    let turns =
        |rests: &[Rest]| rests.iter().map(|rest| rest.ledger.min(REMEMBERED_TURNS)).fold(0.0, f64::max);
    let remembered = (turns(last) - turns(first)) as u64;
    let most = rss(first) + rss(first) / 5 + RSS_SLACK_KIB + remembered;
    if rss(last) > most {
        let grew = format!("resident memory grew from {} to {} KiB, {most} at most", rss(first), rss(last));
        found.push(grew);
    }
    if threads(last) > threads(first) {
        found.push(format!("threads grew from {} to {}", threads(first), threads(last)));
    }
    found
}
