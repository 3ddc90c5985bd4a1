//! HTTP/1.1, HTTP/2 and TLS in front; TLS and routes behind. Spoken to with Python's own ssl module.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::upstream::{Upstream, whole};
use crate::support::{Serin, wire};

/// A certificate for `localhost` and 127.0.0.1 that signs itself, and its key.
fn certificate(dir: &Path) -> (PathBuf, PathBuf) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (cert, key)
}

/// Runs a Python script with these arguments; its output.
fn python(script: &str, arguments: &[&str]) -> String {
    let output = Command::new("python3").arg("-c").arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

const HTTPS: &str = "import http.client, ssl, sys\n\
    context = ssl.create_default_context(cafile=sys.argv[3])\n\
    one = http.client.HTTPSConnection(sys.argv[1], int(sys.argv[2]), context=context, timeout=20)\n\
    one.request('GET', '/over/tls'); print(one.getresponse().read().decode())";

#[test]
fn tls_in_front_is_verified_by_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path());
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"through TLS"));
    let serin =
        Serin::before(upstream.address, &format!("[listen]\ncert_file = {cert:?}\nkey_file = {key:?}\n"));
    let port = serin.traffic().port().to_string();
    assert_eq!(python(HTTPS, &["localhost", &port, cert.to_str().unwrap()]), "through TLS");
    assert!(upstream.received()[0].head.starts_with("GET /over/tls HTTP/1.1\r\n"));
    // A plain client gets no answer and disturbs nobody.
    assert_ne!(wire::get(serin.traffic(), "/").status, 200);
    assert_eq!(python(HTTPS, &["localhost", &port, cert.to_str().unwrap()]), "through TLS");
}

#[test]
fn tls_behind_is_verified_by_us() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(dir.path());
    let plain = Upstream::canned(whole("200 OK", "text/plain", b"behind TLS"));
    let router =
        Serin::before(plain.address, &format!("[listen]\ncert_file = {cert:?}\nkey_file = {key:?}\n"));
    let behind = |ca: &str| {
        let url = format!("https://localhost:{}", router.traffic().port());
        Serin::start(&format!(
            "[[upstream]]\nname = \"router\"\nurl = \"{url}\"\n{ca}\n[fallback]\nfor = []\n"
        ))
    };
    let trusting = behind(&format!("ca_file = {cert:?}"));
    assert_eq!(wire::get(trusting.traffic(), "/x").text(), "behind TLS");
    let (other, _) = certificate(tempfile::tempdir_in(dir.path()).unwrap().keep().as_path());
    let strict = behind(&format!("ca_file = {other:?}"));
    let refused = wire::get(strict.traffic(), "/x");
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (502, Some("upstream_refused")));
}

#[test]
fn http_2_with_prior_knowledge_reaches_an_http_1_upstream() {
    let upstream = Upstream::start(|request, out| {
        std::io::Write::write_all(out, &whole("200 OK", "text/plain", &request.body)).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let body = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(serin.traffic()).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        let request = hyper::Request::post("http://name.test/v1/x")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(http_body_util::Full::new(bytes::Bytes::from_static(b"over h2")))
            .unwrap();
        let answer = async {
            let answer = sender.send_request(request).await.unwrap();
            http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes()
        };
        tokio::select! { answer = answer => answer, _ = connection => panic!("the connection ended first") }
    });
    assert_eq!(body, "over h2");
    let received = &upstream.received()[0];
    assert_eq!(
        (received.headers("host"), received.headers("cookie")),
        (vec!["name.test".into()], vec!["a=1; b=2".into()])
    );
}

#[test]
fn paths_choose_their_upstream_and_the_host_header_may_be_its_own() {
    let (one, two) =
        (Upstream::canned(whole("200 OK", "a/b", b"one")), Upstream::canned(whole("200 OK", "a/b", b"two")));
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"one\"\nurl = \"http://{}\"\nhost = \"rewrite\"\n[[upstream]]\nname = \"two\"\nurl = \"http://{}\"\n\
         [[route]]\npath_prefix = \"/v1/\"\nupstreams = [\"one\"]\n[[route]]\npath_prefix = \"/v1/embeddings\"\nupstreams = [\"two\"]\n\
         [fallback]\nfor = []\n",
        one.address, two.address
    ));
    assert_eq!(wire::get(serin.traffic(), "/v1/models").text(), "one");
    assert_eq!(wire::get(serin.traffic(), "/v1/embeddings?x").text(), "two");
    assert_eq!(one.received()[0].headers("host"), [one.address.to_string()]);
    assert_eq!(two.received()[0].headers("host"), ["test"]);
    // A target that names its host outranks the header.
    wire::send(serin.traffic(), b"GET http://named.test/v1/embeddings HTTP/1.1\r\nHost: other\r\n\r\n");
    assert_eq!(two.received()[1].headers("host"), ["named.test"]);
    assert!(two.received()[1].head.starts_with("GET /v1/embeddings HTTP/1.1\r\n"));
}
