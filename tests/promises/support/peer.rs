//! Real peers, from the package registries: Python and Node clients, uvicorn, nginx, curl.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;

pub const OPENAI: &[&str] = &["openai==3.57.0"];
pub const ANTHROPIC: &[&str] = &["anthropic==2.15.0"];
pub const UVICORN: &[&str] = &["uvicorn==0.54.0"];
pub const ENCODERS: &[&str] = &["brotli==1.2.1", "zstandard==0.25.0"];
pub const NODE: &[&str] = &["openai@6.49.0", "@anthropic-ai/sdk@1.15.0"];

/// Runs a command to its end; it must succeed.
pub fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stdout));
    output
}

/// Makes a folder below `target/` once, one at a time: tests run beside each other.
fn once(name: &str, make: impl FnOnce(&Path)) -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock();
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mark = root.join("made");
    if !mark.exists() {
        std::fs::create_dir_all(&root).unwrap();
        make(&root);
        std::fs::write(mark, "").unwrap();
    }
    root
}

/// The Python of a virtual environment with these packages in it.
pub fn python(packages: &[&str]) -> PathBuf {
    let root = once(&packages.join("+"), |root| {
        succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(root));
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        succeed(Command::new(root.join("bin/python")).args(pip).args(packages));
    });
    root.join("bin/python")
}

/// A script of `tests/promises/`.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promises").join(name)
}

/// Runs a Python script with these packages; what it prints.
pub fn run_python(packages: &[&str], name: &str, arguments: &[String]) -> String {
    let output = succeed(Command::new(python(packages)).arg(script(name)).args(arguments));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A Node script, copied to where [`NODE`]'s packages are: a module finds its packages beside itself.
pub fn node_script(name: &str) -> PathBuf {
    let root = once("node-clients", |root| {
        std::fs::write(root.join("package.json"), "{\"private\": true}").unwrap();
        let npm = ["install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"];
        succeed(Command::new("npm").current_dir(root).args(npm).args(NODE));
    });
    let here = root.join(Path::new(name).file_name().unwrap());
    std::fs::copy(script(name), &here).unwrap();
    here
}

/// Runs a Node script; what it prints.
pub fn run_node(name: &str, arguments: &[String]) -> String {
    let output = succeed(Command::new("node").arg(node_script(name)).args(arguments));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs curl; what it wrote to its standard output.
pub fn curl(arguments: &[&str]) -> Vec<u8> {
    succeed(Command::new("curl").args(["-sS", "--max-time", "60"]).args(arguments)).stdout
}

/// A process that ends with the test.
pub struct Peer {
    child: Child,
    pub address: SocketAddr,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// uvicorn with the application of `python/app.py`, on a port of its own choice.
pub fn uvicorn(options: &[&str]) -> Peer {
    let app = script("python/app.py");
    let mut command = Command::new(python(UVICORN));
    command.args([
        "-m",
        "uvicorn",
        "app:app",
        "--port",
        "0",
        "--log-level",
        "info",
        "--no-access-log",
        "--app-dir",
    ]);
    command.arg(app.parent().unwrap()).args(options).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.by_ref().find(|line| line.contains("running on http://")).expect("uvicorn starts");
    let address =
        said.split("http://").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().parse().unwrap();
    // What it says later must be taken, or it would wait for a reader.
    std::thread::spawn(move || lines.for_each(drop));
    Peer { child, address }
}

/// nginx on a free port in front of `upstream`, with these lines in its `location /`; they may set the HTTP version.
pub fn nginx(dir: &Path, upstream: SocketAddr, location: &str) -> Peer {
    let program = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"];
    let program = program.iter().find(|path| Path::new(path).exists()).expect("nginx is needed");
    for _ in 0..10 {
        // nginx cannot choose a port itself; another program may take this one first.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = dir.join("nginx.conf");
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {}/{name};", dir.display()))
            .collect();
        let version = if location.contains("proxy_http_version") { "" } else { "proxy_http_version 1.1;" };
        std::fs::write(
            &config,
            format!(
                "daemon off; master_process off; pid {0}/pid; error_log {0}/error.log;\n\
                 events {{ }}\nhttp {{ access_log off; {temporary} client_max_body_size 0;\n\
                 server {{ listen {address}; location / {{ {version} proxy_set_header Connection '';\n\
                 proxy_pass http://{upstream}; {location} }} }} }}\n",
                dir.display()
            ),
        )
        .unwrap();
        let mut child = Command::new(program)
            .arg("-e")
            .arg(dir.join("error.log"))
            .arg("-p")
            .arg(dir)
            .arg("-c")
            .arg(&config)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let up = super::eventually("nginx answers or ends", || {
            let ended = child.try_wait().unwrap().is_some();
            (ended || std::net::TcpStream::connect(address).is_ok()).then_some(!ended)
        });
        if up {
            return Peer { child, address };
        }
    }
    let said = std::fs::read_to_string(dir.join("error.log")).unwrap_or_default();
    panic!("nginx does not start: {said}")
}
