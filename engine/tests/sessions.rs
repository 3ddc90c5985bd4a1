//! The engine as its users see it: queue, slots, prefix reuse, stops, cancellation, shutdown.

use std::ops::ControlFlow;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};

use serin_engine::{
    Chat, Engine, EngineConfig, Error, Event, FinishReason, Generate, Model, Prompt, REFERENCE, TopK,
};

fn engine(slots: usize, queue: usize) -> Engine {
    let engine = Engine::start(EngineConfig { threads: 1, slots, queue }).unwrap();
    engine.add(Model::reference().unwrap());
    engine
}

fn text(prompt: &str) -> Generate {
    Generate {
        model: REFERENCE.into(),
        prompt: Prompt::Text(prompt.into()),
        max_tokens: 30,
        temperature: 0.0,
        top_p: 1.0,
        seed: None,
        stop: Vec::new(),
        index_topk: TopK::All,
    }
}

fn start(engine: &Engine, request: Generate) -> Receiver<Event> {
    let (send, receive) = mpsc::channel();
    let sink = move |event| match send.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    engine.generate(request, Box::new(sink)).unwrap();
    receive
}

fn answer(events: &[Event]) -> String {
    let text = |event: &Event| match event {
        Event::Text(text) => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

fn run(engine: &Engine, request: Generate) -> Vec<Event> {
    start(engine, request).into_iter().collect()
}

const PLANTED: &str = "The tag of locker Q7 is amber-river-4821-k. The door is open. The tag of locker Q7 is";

#[test]
fn an_answer_is_started_streamed_and_finished() {
    let engine = engine(1, 1);
    let events = run(&engine, text(PLANTED));
    let prompt_tokens = engine.model(REFERENCE).unwrap().encode(PLANTED).unwrap().len();
    assert_eq!(events[0], Event::Started { prompt_tokens, cached_tokens: 0 });
    assert_eq!(answer(&events), " amber-river-4821-k");
    // Ten printed tokens and the full stop that ended them.
    assert_eq!(events.last(), Some(&Event::Finished { reason: FinishReason::Stop, completion_tokens: 11 }));
}

#[test]
fn max_tokens_ends_with_length() {
    let engine = engine(1, 1);
    let events = run(&engine, Generate { max_tokens: 3, ..text(PLANTED) });
    assert_eq!(answer(&events), " amber-river");
    assert_eq!(events.last(), Some(&Event::Finished { reason: FinishReason::Length, completion_tokens: 3 }));
}

#[test]
fn a_stop_string_over_several_tokens_is_not_printed() {
    let engine = engine(1, 1);
    let events = run(&engine, Generate { stop: vec!["river-48".into()], ..text(PLANTED) });
    assert_eq!(answer(&events), " amber-");
    assert!(matches!(events.last(), Some(Event::Finished { reason: FinishReason::Stop, .. })));
}

#[test]
fn the_common_prefix_is_not_computed_again() {
    let engine = engine(1, 1);
    let model = engine.model(REFERENCE).unwrap();
    run(&engine, text(PLANTED));
    let longer = format!("{PLANTED} amber-river-4821-k. And again: The tag of locker Q7 is");
    let events = run(&engine, text(&longer));
    // The prompt and the ten printed tokens are the same; the ending full stop was never fed.
    let cached_tokens = model.encode(PLANTED).unwrap().len() + 10;
    let prompt_tokens = model.encode(&longer).unwrap().len();
    assert_eq!(events[0], Event::Started { prompt_tokens, cached_tokens });
    assert_eq!(answer(&events), " amber-river-4821-k");
    // The same prompt again computes its last token only.
    let events = run(&engine, text(&longer));
    assert_eq!(events[0], Event::Started { prompt_tokens, cached_tokens: prompt_tokens - 1 });
    assert_eq!(answer(&events), " amber-river-4821-k");
    // Another prompt with the same beginning finds nothing of the old one beyond it.
    let other = PLANTED.replace("amber-river-4821-k", "cobalt-lake-1111-z");
    assert_eq!(answer(&run(&engine, text(&other))), " cobalt-lake-1111-z");
}

#[test]
fn other_settings_do_not_share_a_cache() {
    let engine = engine(1, 1);
    run(&engine, text(PLANTED));
    let limit = TopK::Limit(std::num::NonZeroUsize::new(8).unwrap());
    let events = run(&engine, Generate { index_topk: limit, ..text(PLANTED) });
    assert!(matches!(events[0], Event::Started { cached_tokens: 0, .. }), "{:?}", events[0]);
}

#[test]
fn two_conversations_keep_their_own_slots() {
    let engine = engine(2, 2);
    let other = PLANTED.replace("The tag", "Her tag");
    run(&engine, text(PLANTED));
    run(&engine, text(&other));
    for prompt in [PLANTED, &other] {
        let events = run(&engine, text(prompt));
        let Event::Started { prompt_tokens, cached_tokens } = events[0] else { panic!("{:?}", events[0]) };
        assert_eq!(cached_tokens, prompt_tokens - 1);
    }
}

/// A request that holds its worker until the returned sender is dropped.
fn block(engine: &Engine) -> (mpsc::Sender<()>, Receiver<()>) {
    let (release, wait) = mpsc::channel::<()>();
    let (send, started) = mpsc::channel();
    let sink = move |event| {
        if matches!(event, Event::Started { .. }) {
            send.send(()).ok();
            wait.recv().ok();
        }
        ControlFlow::Continue(())
    };
    engine.generate(text(PLANTED), Box::new(sink)).unwrap();
    (release, started)
}

#[test]
fn a_full_queue_refuses_at_once() {
    let engine = engine(1, 1);
    let (release, started) = block(&engine);
    started.recv().unwrap();
    let waiting = start(&engine, text(PLANTED));
    assert_eq!(engine.queued(), 1);
    let refused = engine.generate(text(PLANTED), Box::new(|_| panic!("a refused request has no events")));
    assert_eq!(refused, Err(Error::Busy { queue: 1 }));
    drop(release);
    assert_eq!(answer(&waiting.into_iter().collect::<Vec<_>>()), " amber-river-4821-k");
}

#[test]
fn a_client_that_leaves_ends_the_work_between_chunks() {
    let engine = engine(1, 1);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (send, done) = mpsc::channel::<()>();
    let record = seen.clone();
    let sink = move |event: Event| {
        let _keep = &send;
        let gone = matches!(event, Event::Progress { .. });
        record.lock().unwrap().push(event);
        if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    engine.generate(text(&"The door is open. ".repeat(400)), Box::new(sink)).unwrap();
    // The sink is dropped when the request is over.
    assert!(done.recv().is_err());
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(seen[1], Event::Progress { prompt_tokens_done: 256 });
    drop(seen);
    assert_eq!(answer(&run(&engine, text(PLANTED))), " amber-river-4821-k");
}

#[test]
fn a_sink_that_panics_harms_no_other_request() {
    let engine = engine(1, 2);
    engine.generate(text(PLANTED), Box::new(|_| panic!("on purpose"))).unwrap();
    assert_eq!(answer(&run(&engine, text(PLANTED))), " amber-river-4821-k");
}

#[test]
fn dropping_the_engine_ends_running_and_waiting_requests() {
    let engine = engine(1, 2);
    let (release, started) = block(&engine);
    started.recv().unwrap();
    let waiting = start(&engine, text(PLANTED));
    drop(release);
    drop(engine);
    // Either it was reached in time and finished, or it was dropped; it never hangs.
    for _ in waiting {}
}

#[test]
#[cfg(target_os = "linux")]
fn the_engine_stands_back_behind_other_threads() {
    let engine = engine(1, 1);
    let nice = || rustix::process::getpriority_process(None).unwrap();
    let ours = nice();
    let (send, receive) = mpsc::channel();
    let sink = move |_| {
        send.send(nice()).ok();
        ControlFlow::Break(())
    };
    engine.generate(text(PLANTED), Box::new(sink)).unwrap();
    assert_eq!(receive.recv().unwrap(), (ours + 10).min(19));
    assert_eq!(nice(), ours);
}

#[test]
fn a_replaced_model_takes_its_caches_along() {
    let engine = engine(1, 1);
    run(&engine, text(PLANTED));
    engine.add(Model::reference().unwrap());
    assert_eq!(engine.models().len(), 1);
    let events = run(&engine, text(PLANTED));
    assert!(matches!(events[0], Event::Started { cached_tokens: 0, .. }), "{:?}", events[0]);
    assert_eq!(answer(&events), " amber-river-4821-k");
}

#[test]
fn bad_requests_name_their_fault() {
    let engine = engine(1, 1);
    let refuse =
        |request: Generate| engine.generate(request, Box::new(|_| ControlFlow::Break(()))).unwrap_err();
    assert!(matches!(refuse(Generate { model: "x".into(), ..text("a") }), Error::UnknownModel { .. }));
    assert!(matches!(refuse(Generate { max_tokens: 0, ..text("a") }), Error::Invalid(_)));
    assert!(matches!(refuse(Generate { temperature: f32::NAN, ..text("a") }), Error::Invalid(_)));
    assert!(matches!(refuse(Generate { top_p: 0.0, ..text("a") }), Error::Invalid(_)));
    assert!(matches!(refuse(Generate { stop: vec![String::new()], ..text("a") }), Error::Invalid(_)));
    let fail = |request: Generate| match run(&engine, request).as_slice() {
        [Event::Failed(error)] => error.clone(),
        [Event::Started { .. }, Event::Failed(error)] => error.clone(),
        other => panic!("{other:?}"),
    };
    let tokens = Prompt::Tokens(vec![5; 131_073]);
    assert_eq!(
        fail(Generate { prompt: tokens, ..text("") }),
        Error::TooLong { prompt: 131_073, context: 131_072 }
    );
    // Far too long is known after a part of it.
    let endless = "\n \n".repeat(3_000_000);
    assert!(matches!(
        fail(text(&endless)),
        Error::TooLong { prompt, context: 131_072 } if prompt < 1_000_000
    ));
    assert!(matches!(fail(text("")), Error::Invalid(_)));
    assert!(matches!(
        fail(Generate { prompt: Prompt::Tokens(vec![4_000_000]), ..text("") }),
        Error::Invalid(_)
    ));
    assert_eq!(answer(&run(&engine, text(PLANTED))), " amber-river-4821-k");
}

#[test]
fn chat_renders_plainly_and_ends_with_the_last_message() {
    let model = Model::reference().unwrap();
    let message =
        |role: &str, content: serde_json::Value| serde_json::json!({"role": role, "content": content});
    let chat = Chat {
        messages: vec![
            message("system", "Be exact.".into()),
            message("user", serde_json::json!([{"type": "text", "text": "The tag is a."}])),
            message("assistant", serde_json::Value::Null),
            message("user", "Is it?".into()),
            message("assistant", " It is.".into()),
            message("user", "The tag is".into()),
        ],
        tools: None,
    };
    assert_eq!(model.render_chat(&chat).unwrap(), "Be exact.\nThe tag is a.\nIs it? It is.\nThe tag is");
    let tools = Some(serde_json::json!([{"type": "function", "function": {"name": "look"}}]));
    let text = model.render_chat(&Chat { tools, ..chat }).unwrap();
    assert!(
        text.starts_with("[{\"function\": {\"name\": \"look\"}, \"type\": \"function\"}]\nBe exact."),
        "{text}"
    );
}

#[test]
fn the_tokenizer_gives_a_word_the_same_tokens_wherever_it_stands() {
    let model = Model::reference().unwrap();
    let secret = model.encode(" amber-river-4821-k").unwrap();
    for (before, after) in [("The tag is", "."), ("x", "\n"), ("Q7:", "!"), ("7", " and")] {
        let whole = model.encode(&format!("{before} amber-river-4821-k{after}")).unwrap();
        assert!(whole.windows(secret.len()).any(|window| window == secret), "{before:?} {after:?}");
    }
    assert_eq!(model.encode(" 4821").unwrap().len(), 4);
    assert_eq!(model.encode("今天天气").unwrap().iter().filter(|&&t| t > 8192).count(), 0);
}
