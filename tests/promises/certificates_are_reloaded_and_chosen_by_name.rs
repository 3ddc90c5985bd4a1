//! Certificates are chosen by the name a client asks for, clients may be asked for theirs, and changed files are used
//! without a restart. Spoken to with curl, with Python's ssl module and with rustls.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::support::certificates::{Authority, Secure, shake, shown};
use crate::support::upstream::{Upstream, whole};
use crate::support::{Serin, eventually, wire};

/// The body of an answer fetched by curl, or the exit code it gave up with.
fn curl(name: &str, address: SocketAddr, arguments: &[&str]) -> Result<String, Option<i32>> {
    let port = address.port();
    let mut command = Command::new("curl");
    command.args(["--silent", "--max-time", "30", "--resolve", &format!("{name}:{port}:127.0.0.1")]);
    let output = command.args(arguments).arg(format!("https://{name}:{port}/x")).output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(output.status.code()),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Asks once more over a connection that is open.
fn ask(secure: &mut Secure) -> String {
    secure.write_all(b"GET /again HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"fine") {
        assert!(wire::more(secure, &mut answer), "{}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn the_name_a_client_asks_for_chooses_the_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ca = authority.write(dir.path(), "ca");
    let first = authority.issue(dir.path(), "first", &["first.test"], 2040);
    let second = authority.issue(dir.path(), "second", &["second.test", "*.wild.test"], 2040);
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"fine"));
    let listen = format!("[listen]\n{}[[listen.certificate]]\n{}", first.keys(), second.keys());
    let serin = Serin::before(upstream.address, &listen);
    let trust = ["--cacert", text(&ca)];
    for name in ["first.test", "second.test", "a.wild.test", "B.WILD.test"] {
        assert_eq!(curl(name, serin.traffic(), &trust), Ok("fine".into()), "{name}");
    }
    // 60: the certificate is not for this name. A wildcard covers one label.
    for name in ["other.test", "a.b.wild.test"] {
        assert_eq!(curl(name, serin.traffic(), &trust), Err(Some(60)), "{name}");
    }
    for (name, expected) in
        [("first.test", &first), ("a.wild.test", &second), ("other.test", &first), ("127.0.0.1", &first)]
    {
        assert!(shown(serin.traffic(), name) == expected.der(), "{name}");
    }
    // What both can speak is agreed upon in the handshake.
    for (offered, agreed) in [
        (vec![b"h2".as_slice(), b"http/1.1"], Some(b"h2".as_slice())),
        (vec![b"http/1.1".as_slice()], Some(b"http/1.1".as_slice())),
        (vec![], None),
    ] {
        let secure = shake(serin.traffic(), "first.test", &offered);
        assert_eq!(secure.conn.alpn_protocol(), agreed);
    }
    let versions =
        curl("first.test", serin.traffic(), &[&trust[..], &["--write-out", ",%{http_version}"]].concat());
    assert_eq!(versions, Ok("fine,2".into()));
}

#[test]
fn a_changed_file_is_used_and_no_connection_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let old = authority.issue(dir.path(), "it", &["it.test"], 2040);
    let old_der = old.der();
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"fine"));
    let extra = format!("[listen]\n{}[limits]\nfiles_every = \"20ms\"\n", old.keys());
    let serin = Serin::before(upstream.address, &extra);
    let expiry = format!(
        "serin_tls_certificate_expiry_timestamp_seconds{{file=\"{}\",section=\"listen\"}}",
        old.cert.display()
    );
    let stale = "serin_tls_files_stale{section=\"listen\"}";
    assert_eq!(serin.metric(&expiry), Some(2_208_988_800.0));
    let mut open = shake(serin.traffic(), "it.test", &[]);
    ask(&mut open);

    let new = authority.issue(dir.path(), "it", &["it.test"], 2041);
    assert!(new.der() != old_der);
    eventually("the new certificate", || (shown(serin.traffic(), "it.test") == new.der()).then_some(()));
    assert_eq!(serin.metric(&expiry), Some(2_240_611_200.0));
    assert!(ask(&mut open).contains("200 OK"));

    // A key that does not belong to the certificate, then nothing at all: what was read before stays.
    let new_der = new.der();
    let key = std::fs::read(&new.key).unwrap();
    std::fs::write(&new.key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    serin.reaches(stale, 1.0);
    assert!(shown(serin.traffic(), "it.test") == new_der);
    std::fs::remove_file(&new.cert).unwrap();
    serin.reaches("serin_tls_reloads_total{outcome=\"rejected\",section=\"listen\"}", 2.0);
    assert!(shown(serin.traffic(), "it.test") == new_der && ask(&mut open).contains("200 OK"));

    // Mended: it goes on by itself.
    std::fs::write(&new.key, key).unwrap();
    let newest = authority.issue(dir.path(), "it", &["it.test"], 2042);
    eventually("the newest certificate", || {
        (shown(serin.traffic(), "it.test") == newest.der()).then_some(())
    });
    eventually("nothing is stale", || serin.metric(stale).filter(|stale| *stale == 0.0));
    assert!(ask(&mut open).contains("200 OK"));
}

#[test]
fn clients_without_a_good_certificate_stay_outside() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.write(dir.path(), "ca");
    let server = ours.issue(dir.path(), "server", &["it.test"], 2040);
    let good = ours.issue(dir.path(), "good", &["client"], 2040);
    let bad = theirs.issue(dir.path(), "bad", &["client"], 2040);
    let expired = ours.issue(dir.path(), "expired", &["client"], 2020);
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"fine"));
    let start = |kind: &str| {
        let extra = format!(
            "[listen]\n{}client_ca_file = {ca:?}\nclient_certificates = \"{kind}\"\n[limits]\nfiles_every = \"20ms\"\n",
            server.keys()
        );
        Serin::before(upstream.address, &extra)
    };
    let trust = ["--cacert", text(&ca)];
    let ask = |serin: &Serin, shows: Option<&crate::support::certificates::Files>| {
        let shown = shows.map(|files| ["--cert", text(&files.cert), "--key", text(&files.key)]);
        let arguments = [&trust[..], shown.as_ref().map_or(&[], |shown| &shown[..])].concat();
        curl("it.test", serin.traffic(), &arguments)
    };
    let required = start("required");
    let failures = |reason: &str| {
        let series =
            format!("serin_server_handshake_failures_total{{listener=\"listen\",reason=\"{reason}\"}}");
        required.metric(&series).unwrap()
    };
    assert_eq!(ask(&required, Some(&good)), Ok("fine".into()));
    assert_eq!(failures("no_client_certificate") + failures("bad_client_certificate"), 0.0);
    assert!(ask(&required, None).is_err());
    assert_eq!(failures("no_client_certificate"), 1.0);
    assert!(ask(&required, Some(&bad)).is_err() && ask(&required, Some(&expired)).is_err());
    assert_eq!(failures("bad_client_certificate"), 2.0);
    assert_eq!(upstream.received().len(), 1, "nothing of the others reached the upstream");

    let requested = start("requested");
    assert_eq!(ask(&requested, None), Ok("fine".into()));
    assert_eq!(ask(&requested, Some(&good)), Ok("fine".into()));
    assert!(ask(&requested, Some(&bad)).is_err());

    // The authority's file is looked after as well: who was good is not any more.
    theirs.write(dir.path(), "ca");
    let own = ours.write(dir.path(), "own");
    let reloaded = "serin_tls_reloads_total{outcome=\"loaded\",section=\"listen\"}";
    required.reaches(reloaded, 1.0);
    let shows = |files: &crate::support::certificates::Files| {
        let (cert, key) = (text(&files.cert).to_owned(), text(&files.key).to_owned());
        curl("it.test", required.traffic(), &["--cacert", text(&own), "--cert", &cert, "--key", &key])
    };
    assert_eq!(shows(&bad), Ok("fine".into()));
    assert!(shows(&good).is_err());
}

#[test]
fn pythons_own_ssl_module_shows_a_certificate_too() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ca = authority.write(dir.path(), "ca");
    let server = authority.issue(dir.path(), "server", &["localhost"], 2040);
    let client = authority.issue(dir.path(), "client", &["client"], 2040);
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"fine"));
    let asks = format!("client_ca_file = {ca:?}\nclient_certificates = \"required\"\n");
    let serin = Serin::before(
        upstream.address,
        &format!("[listen]\n{}{asks}[admin]\n{}{asks}", server.keys(), server.keys()),
    );
    const SCRIPT: &str = "import http.client, ssl, sys\n\
        context = ssl.create_default_context(cafile=sys.argv[2])\n\
        def ask(path):\n    \
            one = http.client.HTTPSConnection('localhost', int(sys.argv[1]), context=context, timeout=20)\n    \
            one.request('GET', path); return one.getresponse().read().decode()\n\
        try:\n    ask('/'); print('let in without one')\n\
        except (ssl.SSLError, ConnectionError): pass\n\
        context.load_cert_chain(sys.argv[3], sys.argv[4]); print(ask('/healthz'))";
    for (address, expected) in [(serin.traffic(), "fine"), (serin.admin(), "\"status\":\"ok\"")] {
        let port = address.port().to_string();
        let arguments = [port.as_str(), text(&ca), text(&client.cert), text(&client.key)];
        let output = Command::new("python3").arg("-c").arg(SCRIPT).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn a_handshake_that_fails_is_counted_by_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = Authority::new().issue(dir.path(), "server", &["it.test"], 2040);
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"fine"));
    let extra = format!("[listen]\n{}[limits]\nhandshake = \"300ms\"\n", server.keys());
    let serin = Serin::before(upstream.address, &extra);
    let reaches = |reason: &str| {
        serin.reaches(
            &format!("serin_server_handshake_failures_total{{listener=\"listen\",reason=\"{reason}\"}}"),
            1.0,
        )
    };
    assert_ne!(wire::get(serin.traffic(), "/").status, 200);
    reaches("not_tls");
    // One that says nothing is closed.
    let mut silent = wire::connect(serin.traffic());
    assert!(!wire::more(&mut silent, &mut Vec::new()));
    reaches("timeout");
    drop(wire::connect(serin.traffic()));
    reaches("client_left");
    // 60: curl does not know the authority, and says so.
    assert_eq!(curl("it.test", serin.traffic(), &[]), Err(Some(60)));
    reaches("refused_by_client");
    // 35: they cannot agree.
    let old = ["--insecure", "--tls-max", "1.2", "--ciphers", "AES128-SHA256"];
    assert_eq!(curl("it.test", serin.traffic(), &old), Err(Some(35)));
    reaches("nothing_in_common");
    assert_eq!(curl("it.test", serin.traffic(), &["--insecure"]), Ok("fine".into()));
}

/// A router that lets in only who shows a certificate, and a Serin before it that has one.
#[test]
fn an_upstream_is_shown_a_certificate_and_both_sides_may_change_theirs() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (Authority::new(), Authority::new());
    let ca = first.write(dir.path(), "ca");
    let server = first.issue(dir.path(), "server", &["localhost"], 2040);
    let client = first.issue(dir.path(), "client", &["serin"], 2040);
    let plain = Upstream::canned(whole("200 OK", "text/plain", b"fine"));
    let router = Serin::before(
        plain.address,
        &format!(
            "[listen]\n{}client_ca_file = {ca:?}\nclient_certificates = \"required\"\n[limits]\nfiles_every = \"20ms\"\n",
            server.keys()
        ),
    );
    let front = |keys: &str| {
        Serin::start(&format!(
            "[[upstream]]\nname = \"router\"\nurl = \"https://localhost:{}\"\nca_file = {ca:?}\n{keys}\
             [fallback]\nfor = []\n[limits]\nfiles_every = \"20ms\"\npool_size = 0\n",
            router.traffic().port()
        ))
    };
    assert_ne!(wire::get(front("").traffic(), "/x").status, 200);
    let serin = front(&client.keys());
    assert_eq!(wire::get(serin.traffic(), "/x").text(), "fine");

    // Everything changes hands: authority, the router's certificate, and ours.
    second.write(dir.path(), "ca");
    second.issue(dir.path(), "server", &["localhost"], 2041);
    second.issue(dir.path(), "client", &["serin"], 2041);
    router.reaches("serin_tls_reloads_total{outcome=\"loaded\",section=\"listen\"}", 1.0);
    let expiry = format!(
        "serin_tls_certificate_expiry_timestamp_seconds{{file=\"{}\",section=\"upstream router\"}}",
        client.cert.display()
    );
    serin.reaches(&expiry, 2_240_611_200.0);
    eventually("both use the new ones", || (wire::get(serin.traffic(), "/x").status == 200).then_some(()));
}
