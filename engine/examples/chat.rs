//! One answer from a model: `cargo run --release -p serin-engine --example chat -- MODEL "What is a finch?" [TOKENS]`.
//! MODEL is a .gguf file, a model folder, or `reference`.

#![expect(clippy::disallowed_methods, reason = "it prints how long things take")]

use std::io::Write;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;
use std::time::Instant;

use serin_engine::{Chat, Engine, EngineConfig, Error, Event, Generate, Model, Prompt, TopK};

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, question, rest @ ..] = args.as_slice() else {
        eprintln!("usage: chat MODEL QUESTION [TOKENS]");
        return Ok(());
    };
    let begin = Instant::now();
    let model = if model == "reference" { Model::reference()? } else { Model::open(Path::new(model))? };
    eprintln!("{}: {} (loaded in {:.2?})", model.name(), model.description(), begin.elapsed());
    let threads = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let engine = Engine::start(EngineConfig { threads, slots: 1, queue: 1 })?;
    let messages = vec![serde_json::json!({"role": "user", "content": question})];
    let request = Generate {
        model: model.name().to_owned(),
        prompt: Prompt::Chat(Chat { messages, tools: None }),
        max_tokens: rest.first().and_then(|n| n.parse().ok()).unwrap_or(100),
        temperature: 0.0,
        top_p: 1.0,
        seed: None,
        stop: Vec::new(),
        index_topk: TopK::All,
    };
    engine.add(model);
    let (send, receive) = mpsc::channel();
    let begin = Instant::now();
    engine.generate(
        request,
        Box::new(move |event| match send.send((begin.elapsed(), event)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }),
    )?;
    let (mut prompt, mut prefilled) = (0, 0.0);
    for (at, event) in receive {
        match event {
            Event::Started { prompt_tokens, .. } => prompt = prompt_tokens,
            Event::Progress { .. } => prefilled = at.as_secs_f64(),
            Event::Text(text) => {
                print!("{text}");
                std::io::stdout().flush().ok();
            }
            Event::Failed(error) => return Err(error),
            Event::Finished { completion_tokens, .. } => {
                let decoding = at.as_secs_f64() - prefilled;
                println!();
                eprintln!("prefill {prompt} tokens, {:.1} a second", prompt as f64 / prefilled);
                eprintln!(
                    "decode {completion_tokens} tokens, {:.1} a second",
                    completion_tokens as f64 / decoding
                );
                break;
            }
        }
    }
    Ok(())
}
