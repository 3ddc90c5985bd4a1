//! Streams of the three APIs pass as they are, with usage, tool calls, empty choices and their pieces; the record reads
//! from them what the whole answer says.

use std::io::Write;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use serin::conversation::reading::{Reading, judge};
use serin::journal::End;

use crate::support::api::{self, APIS, Api};
use crate::support::journal::exchanges;
use crate::support::upstream::{Upstream, chunk, chunked, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, h2};

#[test]
fn every_api_is_the_same_as_direct() {
    let upstream = api::upstream();
    let serin = Serin::before(upstream.address, "");
    for api in APIS {
        for model in ["words", "tools"] {
            for stream in [true, false] {
                let request = post(api.path(), "", &api.ask(model, stream));
                let (direct, through) =
                    (wire::send(upstream.address, &request), wire::send(serin.traffic(), &request));
                assert!(direct.body.len() > 200 && through.whole);
                assert_eq!(through.text(), direct.text(), "{api:?} {model} {stream}");
                let mut over_h2 = Vec::new();
                let status = h2::post(serin.traffic(), api.path(), &api.ask(model, stream), |piece| {
                    over_h2.extend_from_slice(piece)
                });
                assert!(status == Ok(200) && over_h2 == direct.body, "{api:?} {model} {stream} over HTTP/2");
            }
        }
    }
}

#[test]
fn nothing_is_asked_for_that_the_client_did_not_ask_for() {
    let upstream = api::upstream();
    let serin = Serin::before(upstream.address, "");
    for options in [
        "",
        ",\"stream_options\":{\"include_usage\":false}",
        ",\"stream_options\":null",
        ",\"stream_options\":{\"include_usage\":true}",
    ] {
        for stream in ["", ",\"stream\":true", ",\"stream\":false"] {
            let body = format!("{{\"model\":\"words\",\"messages\":[]{stream}{options}}}");
            wire::send(serin.traffic(), &post(Api::Chat.path(), "", body.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&upstream.received().pop().unwrap().body), body);
        }
    }
}

#[test]
fn a_record_reads_from_a_stream_what_the_whole_answer_says() {
    let upstream = api::upstream();
    let mut serin = Serin::before(upstream.address, "");
    for model in ["words", "tools"] {
        for stream in [true, false] {
            assert!(
                wire::send(serin.traffic(), &post(Api::Chat.path(), "", &Api::Chat.ask(model, stream))).whole
            );
        }
    }
    let records = exchanges(&mut serin);
    let read: Vec<Reading> =
        records.iter().map(|record| serin::conversation::read(record).unwrap()).collect();
    let message = |reading: &Reading| reading.answer.fold.choices[0].clone();
    for (pair, records) in read.chunks(2).zip(records.chunks(2)) {
        let (streamed, whole) = (message(&pair[0]), message(&pair[1]));
        assert!(pair[0].streaming && !pair[1].streaming);
        assert!(pair.iter().all(|reading| reading.readable && reading.answer.parsed));
        // Of a stream the usage stands in a chunk without choices.
        let usage = |reading: &Reading| reading.answer.fold.usage;
        assert!(
            usage(&pair[0])
                .is_some_and(|usage| usage.prompt_tokens == Some(9) && usage.cached_tokens == Some(4))
        );
        assert_eq!((streamed, usage(&pair[0])), (whole, usage(&pair[1])));
        assert_eq!(judge(&records[0], &pair[0].answer), End::Complete);
    }
    let words = message(&read[0]);
    assert_eq!((words.content.as_str(), words.reasoning_content.as_str()), ("hello", "hmx"));
    assert_eq!(message(&read[2]).tool_calls.len(), 2);
}

#[test]
fn what_no_parser_understands_passes_and_is_recorded() {
    let nested = format!("data: {}\n\n", "[".repeat(100_000));
    let odd: Vec<&[u8]> = vec![
        b"data: {\"choices\":[]}\n\n",
        b"data: {\"choices\":null,\"usage\":7}\n\n",
        b"data: {\"choices\":[null,{},{\"index\":-1}]}\n\n",
        b"data: {\"choices\":[{\"index\":4294967295,\"delta\":{\"tool_calls\":[{\"index\":99999999}]}}]}\n\n",
        b"data: \n\n",
        b"data\n\n",
        b"data: {\"choices\":[{\"delta\":{\"content\":\"\xff\xfe\"}}]}\n\n",
        b"data: {\"choices\":[{\"delta\":{\"content\":\"\\ud800\"}}]}\n\n",
        b"\xf0\x9f",
        b"\x00\x00\n\n",
        nested.as_bytes(),
        b"event: error\ndata: \xff\n\n",
        b"data: [DONE] \n\ndata: [DONE]\n\ndata: [DONE]",
    ];
    let stream = odd.concat();
    let sent = stream.clone();
    let upstream = Upstream::start(move |_, out| {
        let pieces: Vec<u8> = sent.chunks(1_000).flat_map(chunk).collect();
        out.write_all(&[chunked("text/event-stream"), pieces, b"0\r\n\r\n".to_vec()].concat()).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    for round in 1..=3 {
        let answer = wire::send(serin.traffic(), &post(Api::Chat.path(), "", &Api::Chat.ask("m", true)));
        assert!(answer.body == stream && answer.whole);
        serin.reaches("serin_recorder_turns_total{outcome=\"full\",reason=\"\"}", f64::from(round));
    }
}

/// An upstream that writes piece `n + 1` only when told that the client has piece `n`.
fn in_step(pieces: Vec<Vec<u8>>, head: Vec<u8>) -> (Upstream, mpsc::Sender<()>) {
    let (seen, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |_, out| {
        let wait = wait.lock().unwrap();
        let mut ok = out.write_all(&head).is_ok();
        for piece in &pieces {
            ok &= wait.recv().is_ok() && out.write_all(&chunk(piece)).is_ok();
        }
        ok && out.write_all(b"0\r\n\r\n").is_ok()
    });
    (upstream, seen)
}

#[test]
fn pieces_are_recorded_with_their_edges_and_times() {
    let pieces: Vec<Vec<u8>> = Api::Chat.events(true);
    let (upstream, go) = in_step(pieces.clone(), chunked("text/event-stream"));
    let mut serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    let mut asked: serde_json::Value = serde_json::from_slice(&Api::Chat.ask("tools", true)).unwrap();
    asked["stream_options"]["include_usage"] = true.into();
    client.write_all(&post(Api::Chat.path(), "", asked.to_string().as_bytes())).unwrap();
    let mut seen = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        if number == 5 {
            // A pause that the record must show.
            std::thread::park_timeout(Duration::from_millis(150));
        }
        go.send(()).unwrap();
        while wire::find(&seen, piece).is_none() {
            assert!(wire::more(&mut client, &mut seen), "piece {number} never came");
        }
        seen.clear();
    }
    eventually("it is over", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
    let record = exchanges(&mut serin).remove(0);
    let lengths: Vec<u32> = pieces.iter().map(|piece| piece.len() as u32).collect();
    assert_eq!((record.edge_lengths, record.response_body.as_ref()), (lengths, pieces.concat().as_slice()));
    assert_eq!(record.edge_micros.len(), pieces.len());
    assert!(record.edge_micros[5] >= 100_000, "{:?}", record.edge_micros);
    let sum: u64 = record.edge_micros.iter().copied().map(u64::from).sum();
    assert!(sum <= record.end_micros, "{sum} in {}", record.end_micros);
}

#[test]
fn error_events_pass_to_the_byte() {
    let errors: [(&str, &[u8]); 4] = [
        ("/v1/chat/completions", b"data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\ndata: [DONE]\n\n"),
        ("/v1/chat/completions", b"event: error\r\ndata: {\"object\":\"error\" , \"message\":\"x\"}\r\n\r\n"),
        ("/v1/messages", b"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n"),
        ("/v1/responses", b"event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"code\":\"x\"}}}\n\n"),
    ];
    for (path, error) in errors {
        let stream = [b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n", error].concat();
        let sent = stream.clone();
        let upstream = Upstream::start(move |_, out| {
            out.write_all(&[chunked("text/event-stream"), chunk(&sent), b"0\r\n\r\n".to_vec()].concat())
                .is_ok()
        });
        let serin = Serin::before(upstream.address, "");
        let answer = wire::send(serin.traffic(), &post(path, "", b"{\"stream\":true,\"messages\":[]}"));
        assert_eq!((answer.status, answer.text().as_bytes(), answer.whole), (200, stream.as_slice(), true));
    }
}

#[test]
fn an_error_before_the_stream_keeps_its_status_and_type() {
    for (status, kind, body) in [
        (
            "400 Bad Request",
            "application/json; charset=utf-8",
            b"{\"error\":{\"message\":\"no\"}}".as_slice(),
        ),
        ("429 Too Many Requests", "application/json", b"{\"type\":\"error\"}"),
        ("503 Service Unavailable", "text/plain", b"no worker"),
        ("200 OK", "text/event-stream;charset=utf-8", b"data: x\n\n"),
    ] {
        let upstream = Upstream::canned(whole(status, kind, body));
        let serin = Serin::before(upstream.address, "");
        let answer = wire::send(
            serin.traffic(),
            &post(Api::Chat.path(), "Accept: text/event-stream\r\n", &Api::Chat.ask("m", true)),
        );
        assert_eq!((answer.header("content-type"), answer.body.as_slice()), (Some(kind), body));
        assert!(answer.head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{}", answer.head);
    }
}
