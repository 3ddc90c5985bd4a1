//! nginx as one process with one worker: nothing logged, nothing buffered on the way down, connections kept.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Role, Target, wait_for};
use crate::process::Process;
use crate::{Error, address};

pub fn start(upstream: SocketAddr) -> Result<Target, Error> {
    let nginx = find().ok_or("not installed")?;
    let files = tempfile::tempdir()?;
    let address = address::free()?;
    let folder = files.path().display();
    let config = files.path().join("nginx.conf");
    fs::write(
        &config,
        format!(
            "daemon off;\nmaster_process off;\nworker_processes 1;\npid {folder}/pid;\nerror_log {folder}/error.log;\n\
             events {{ worker_connections 65536; }}\n\
             http {{\n  access_log off;\n  client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n\
             \x20 fastcgi_temp_path {folder}/fastcgi;\n  uwsgi_temp_path {folder}/uwsgi;\n  scgi_temp_path {folder}/scgi;\n\
             \x20 client_body_buffer_size 256k;\n  client_max_body_size 16m;\n  keepalive_requests 100000000;\n\
             \x20 upstream mock {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}\n\
             \x20 server {{\n    listen {address} backlog=4096;\n    location / {{\n      proxy_pass http://mock;\n\
             \x20     proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
        ),
    )?;
    let child = Command::new(nginx)
        .arg("-c")
        .arg(&config)
        .arg("-e")
        .arg(files.path().join("error.log"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let mut process = Process::new(child, None, files);
    wait_for(address, &mut process)?;
    Ok(Target { process: Some(process), ..Target::plain("nginx", Role::Nginx, address) })
}

/// Its version, for the report.
pub fn version() -> Option<String> {
    let output = Command::new(find()?).arg("-v").output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    said.trim().rsplit('/').next().map(str::to_owned)
}

/// On Debian nginx is not on everybody's path.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("nginx")).find(|file| file.is_file())
}
