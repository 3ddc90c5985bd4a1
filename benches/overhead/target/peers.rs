//! Other gateways for language models that can be installed from a package registry. Each runs on one worker thread
//! where that can be set, without logs, retries and routing by content, which is the fastest it can be asked for.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Absent, Role, Target, wait_for};
use crate::client::Connection;
use crate::process::Process;
use crate::traffic::{ANSWERS, Ask, Kind};
use crate::workload::SMALL_BODY;
use crate::{Error, address};

pub struct Peer {
    pub name: &'static str,
    /// `pip` or `npm`.
    registry: &'static str,
    /// What is installed, with its version.
    requirement: &'static str,
    /// The program below the installation's folder, with what comes before its options.
    command: &'static str,
    /// The rest of its command line. `{up}`, `{port}`, `{spare}` and `{files}` are filled in.
    options: &'static str,
    environment: &'static [(&'static str, &'static str)],
    /// Name and text of a file in `{files}`.
    file: Option<(&'static str, &'static str)>,
    /// Header lines that every request must carry.
    headers: &'static str,
    cap: usize,
}

/// Requests that a Python or Node gateway can have before it at once without running into time limits.
const FEW: usize = 8;
/// Until the first request is answered.
const READY_WITHIN: Duration = Duration::from_secs(60);
const ONE_THREAD: (&str, &str) = ("TOKIO_WORKER_THREADS", "1");

pub const ALL: &[Peer] = &[
    router("sglang-router", "sglang-router==0.3.2", "bin/sglang-router launch"),
    router("vllm-router", "vllm-router==0.1.17", "bin/vllm-router"),
    router("smg", "smg==1.13.0", "bin/smg launch"),
    Peer {
        name: "litellm",
        registry: "pip",
        requirement: "litellm[proxy]==1.108.7",
        command: "bin/litellm",
        options: "--config {files}/litellm.yaml --host 127.0.0.1 --port {port} --num_workers 1",
        environment: &[
            ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
            ("LITELLM_MODE", "PRODUCTION"),
            ("LITELLM_LOG", "ERROR"),
        ],
        file: Some((
            "litellm.yaml",
            "model_list:\n  - model_name: mock\n    litellm_params:\n      model: openai/mock\n      \
             api_base: http://{up}/v1\n      api_key: none\nlitellm_settings:\n  set_verbose: false\n  \
             num_retries: 0\n  telemetry: false\ngeneral_settings:\n  master_key: sk-bench\n  \
             disable_spend_logs: true\n",
        )),
        headers: "",
        cap: FEW,
    },
    Peer {
        name: "portkey",
        registry: "npm",
        requirement: "@portkey-ai/gateway@1.15.2",
        command: "node node_modules/@portkey-ai/gateway/build/start-server.js",
        options: "--port={port} --headless",
        environment: &[],
        file: None,
        headers: "x-portkey-provider: openai\r\nx-portkey-custom-host: http://{up}/v1\r\n",
        cap: FEW,
    },
    Peer {
        name: "mitmproxy",
        registry: "pip",
        requirement: "mitmproxy==11.0.2",
        command: "bin/mitmdump",
        options: "--quiet --mode reverse:http://{up} --listen-host 127.0.0.1 --listen-port {port} \
                  --set confdir={files} --set stream_large_bodies=1",
        environment: &[],
        file: None,
        headers: "",
        cap: FEW,
    },
];

/// The routers that come from one source and take the same options.
const fn router(name: &'static str, requirement: &'static str, command: &'static str) -> Peer {
    Peer {
        name,
        registry: "pip",
        requirement,
        command,
        options: "--worker-urls http://{up} --host 127.0.0.1 --port {port} --prometheus-port {spare} \
                  --policy round_robin --log-level error --disable-retries --disable-circuit-breaker",
        environment: &[ONE_THREAD],
        file: None,
        headers: "",
        cap: usize::MAX,
    }
}

/// Gateways of the same kind that no package registry has as a program.
pub fn not_packaged() -> Vec<Absent> {
    let why = [
        ("TensorZero, Helicone, agentgateway, Kong, Envoy AI Gateway, llm-d", "no registry has the gateway"),
        ("Bifrost", "the npm package only downloads a binary from elsewhere"),
        ("production-stack", "no package of its own"),
        ("Dynamo", "its frontend speaks to workers of its own and not HTTP"),
    ];
    why.map(|(name, why)| Absent { name: name.to_owned(), why: why.to_owned(), required: false }).into()
}

pub fn start(peer: &Peer, upstream: SocketAddr) -> Result<Target, Error> {
    let folder = install(peer)?;
    let files = tempfile::tempdir()?;
    let (address, spare) = (address::free()?, address::free()?);
    let here = files.path().display().to_string();
    let fill = |text: &str| {
        text.replace("{up}", &upstream.to_string())
            .replace("{port}", &address.port().to_string())
            .replace("{spare}", &spare.port().to_string())
            .replace("{files}", &here)
    };
    if let Some((name, text)) = peer.file {
        fs::write(files.path().join(name), fill(text))?;
    }
    let command = format!("{} {}", peer.command, fill(peer.options));
    let mut words = command.split_whitespace();
    let program = words.next().ok_or("no program")?;
    let program = if program.contains('/') { folder.join(program) } else { program.into() };
    let child = Command::new(&program)
        .args(words)
        .current_dir(&folder)
        .envs(peer.environment.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    let mut process = Process::new(child, None, files);
    wait_for(address, &mut process)?;
    let headers = fill(peer.headers);
    wait_until_ready(address, &headers)?;
    Ok(Target {
        process: Some(process),
        cap: peer.cap,
        headers,
        ..Target::plain(&label(peer), Role::Peer, address)
    })
}

/// Name and version, and how much it is spared.
fn label(peer: &Peer) -> String {
    let version = peer.requirement.rsplit(['=', '@']).next().unwrap_or_default();
    let spared =
        if peer.cap < usize::MAX { format!(", at most {} connections", peer.cap) } else { String::new() };
    format!("{} {version}{spared}", peer.name)
}

/// Below the build's own folder, so that it is installed once.
fn install(peer: &Peer) -> Result<PathBuf, Error> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let built = Path::new(env!("CARGO_BIN_EXE_serin")).ancestors().nth(2).ok_or("no build folder")?;
    let folder = built.join("peers").join(peer.name);
    let output = Command::new(root.join("benches/peers.sh"))
        .arg(&folder)
        .args([peer.registry, peer.requirement])
        .output()?;
    if output.status.success() {
        return Ok(folder);
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned();
    Err(format!("{} cannot be installed: {last}", peer.requirement).into())
}

/// A gateway that listens may still not know its upstream.
fn wait_until_ready(address: SocketAddr, headers: &str) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let began = Instant::now();
    loop {
        let said = runtime.block_on(async {
            match tokio::time::timeout(READY_WITHIN, first_answer(address, headers)).await {
                Ok(answer) => answer,
                Err(_) => Err("no answer".into()),
            }
        });
        match said {
            Ok(200) => return Ok(()),
            _ if began.elapsed() < READY_WITHIN => std::thread::sleep(Duration::from_millis(200)),
            Ok(status) => return Err(format!("answers with status {status}").into()),
            Err(error) => return Err(error),
        }
    }
}

async fn first_answer(address: SocketAddr, headers: &str) -> Result<u16, Error> {
    let ask = Ask::next(Kind::Json, 0);
    let mut connection = Connection::open(address).await?;
    connection.send(&ask.request(address, headers, SMALL_BODY)).await?;
    Ok(connection.answer(&ANSWERS.to(ask), None).await?.status)
}
