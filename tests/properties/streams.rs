//! Answers as the recorder reads them: server-sent events, folding, token counts.

use serin::openai::{Answer, Api, Fold, sse};

use super::pieces;

/// Bytes in front of the stream: the parser's limit, and the media type.
const HEAD: usize = 2;
/// As many choices and tool calls of one as are ever kept.
const MAX_PARTS: usize = 128;

type Owned = (Vec<u8>, Vec<u8>, Vec<u8>, Option<u64>);

fn events(api: Api, pieces: &[&[u8]], limit: usize) -> (Vec<Owned>, Fold, u64, bool) {
    let mut parser = sse::Parser::new(limit);
    let (mut events, mut fold) = (Vec::new(), Fold::default());
    for piece in pieces {
        parser.push(piece, &mut |event| {
            assert!(event.data.len() <= limit && event.name.len() <= limit && event.id.len() <= limit);
            fold.event(api, event.name, event.data);
            events.push((event.name.to_vec(), event.data.to_vec(), event.id.to_vec(), event.retry));
        });
    }
    (events, fold, parser.dropped(), parser.is_mid_event())
}

/// However a stream is cut, the same events come out, nothing passes the limit, and what they fold into is bounded.
pub fn sse(input: &[u8]) {
    let Some((head, stream)) = input.split_at_checked(HEAD) else { return };
    let limit = 1 + usize::from(head[0]) * 16;
    let (pieces, whole) = pieces::cut(stream);
    let api = Api::ALL[usize::from(head[1] / 2) % Api::ALL.len()];
    let cut = events(api, &pieces, limit);
    assert_eq!(cut, events(api, &[whole], limit), "cutting a stream changes what it says");
    let parts = |fold: &Fold| fold.choices.len() <= MAX_PARTS;
    assert!(parts(&cut.1) && cut.1.choices.iter().all(|choice| choice.tool_calls.len() <= MAX_PARTS));
    let media: &[u8] = [b"text/event-stream".as_slice(), b"application/json"][usize::from(head[1] % 2)];
    let answer = Answer::read(api, Some(media), None, whole);
    assert!(answer.streamed == (head[1].is_multiple_of(2)) && parts(&answer.fold));
    // Of a coding that is not known nothing is read, whatever its bytes are.
    let encoded = Answer::read(api, Some(media), Some(b"br"), whole);
    assert!(!encoded.parsed && encoded.fold == Fold::default());
    for coding in [b"gzip".as_slice(), b"zstd"] {
        let _ = Answer::read(api, Some(media), Some(coding), whole);
    }
}
