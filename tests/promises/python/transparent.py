"""Serin in the path of clients that know nothing of it. Runs in network namespaces of its own, as their root.

Arguments: the program, a directory. Clients use the source addresses 10.9.0.2 and fd09::2; the servers they mean have
10.9.0.9 and fd09::9; a firewall rule redirects what those clients send to port 8000 to Serin's port.
"""

import atexit
import http.client
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request

PROGRAM, DIRECTORY = sys.argv[1], sys.argv[2]
CLIENT = {4: "10.9.0.2", 6: "fd09::2"}
SERVER = {4: "10.9.0.9", 6: "fd09::9"}
OTHER_USER = 1


def run(*command):
    subprocess.run(command, check=True)


class Server6(http.server.ThreadingHTTPServer):
    address_family = 10  # AF_INET6


class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        text = f"{self.server.server_address[0]} heard {body.decode()} for {self.headers['host']}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def ask(host, source, body, port=8000):
    """One request by a client that means `host` and nobody else; status and text."""
    one = http.client.HTTPConnection(host, port, timeout=20, source_address=(source, 0))
    one.request("POST", "/v1/x", body, {"host": "meant.test"})
    answer = one.getresponse()
    return answer.status, answer.read().decode()


def expect(found, wanted):
    assert found == wanted, f"{found!r} and not {wanted!r}"


class Serin:
    """A running program that listens on one address and writes what it says where we can read it."""

    def __init__(self, listen, extra="", name="serin", user=None):
        here = os.path.join(DIRECTORY, name)
        os.makedirs(here)
        with open(os.path.join(here, "config.toml"), "w") as file:
            file.write(
                f'[listen]\naddress = "{listen}"\ntransparent = true\n{extra}\n[admin]\naddress = "127.0.0.1:0"\n'
                f'[canary]\nenabled = false\n[record]\ndir = "{here}/data"\n'
            )
        self.here = here
        program = PROGRAM
        if user is not None:
            # That user may not enter where the program and the directory are.
            program = shutil.copy(PROGRAM, here)
            os.chmod(DIRECTORY, 0o755)
            os.chown(here, user, user)
        self.child = subprocess.Popen(
            [program], cwd=here, stderr=subprocess.PIPE, text=True, user=user, group=user, extra_groups=user and []
        )
        atexit.register(self.child.kill)  # whatever goes wrong below: nothing is left running
        for line in self.child.stderr:
            if found := re.search(r"admin=(\S+)", line):
                self.admin = found.group(1)
                break
        else:
            raise SystemExit("serin ended before it listened")
        threading.Thread(target=self.child.stderr.read, daemon=True).start()

    def metric(self, series):
        text = urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=20).read().decode()
        line = next((line for line in text.splitlines() if line.startswith(series + " ")), "x 0")
        return float(line.split()[-1])

    def stop(self):
        self.child.terminate()
        self.child.wait()


def rules(text):
    subprocess.run(["nft", "-f", "-"], input="flush ruleset\n" + text, text=True, check=True)


def prepare():
    run("ip", "link", "set", "lo", "up")
    for version in (4, 6):
        for address in (CLIENT[version], SERVER[version]):
            size = "32" if version == 4 else "128"
            run("ip", "addr", "add", f"{address}/{size}", "dev", "lo", *(["nodad"] if version == 6 else []))
    servers = [http.server.ThreadingHTTPServer((SERVER[4], 8000), Answer), Server6((SERVER[6], 8000), Answer)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()


def redirect(port):
    rules(
        "table inet t { chain out { type nat hook output priority -100;\n"
        f"ip saddr {CLIENT[4]} tcp dport 8000 redirect to :{port}\n"
        f"ip6 saddr {CLIENT[6]} tcp dport 8000 redirect to :{port}\n}}\n}}\n"
    )


NO_ENGINE = '[fallback]\nmodel = ""\nfor = []\n'


def both_kinds_of_address(extra):
    """One listener for both, as `[::]` is: IPv4 comes to it in disguise."""
    serin = Serin("[::]:7001", extra + NO_ENGINE, "both")
    redirect(7001)
    for version in (4, 6):
        expect(
            ask(SERVER[version], CLIENT[version], f"hello {version}"),
            (200, f"{SERVER[version]} heard hello {version} for meant.test"),
        )
    expect(serin.metric('serin_proxy_requests_total{outcome="complete",upstream="original"}'), 2.0)
    # A port where nobody is: said as such, and nobody else answers instead.
    rules(
        "table inet t { chain out { type nat hook output priority -100;\n"
        f"ip saddr {CLIENT[4]} tcp dport 8009 redirect to :7001\n}}\n}}\n"
    )
    status, text = ask(SERVER[4], CLIENT[4], "x", 8009)
    expect((status, json.loads(text)["error"]["code"]), (502, "upstream_refused"))
    serin.stop()


def an_upstream_is_known_by_its_address():
    extra = f'[[upstream]]\nname = "router"\nurl = "http://{SERVER[4]}:8000"\n'
    serin = Serin("127.0.0.1:7002", NO_ENGINE + extra, "named")
    redirect(7002)
    expect(ask(SERVER[4], CLIENT[4], "a")[0], 200)
    expect(serin.metric('serin_proxy_requests_total{outcome="complete",upstream="router"}'), 1.0)
    # A connection that no rule touched goes by the routes.
    expect(ask("127.0.0.1", "127.0.0.1", "b", 7002), (200, f"{SERVER[4]} heard b for meant.test"))
    serin.stop()


def elsewhere_is_refused():
    serin = Serin("127.0.0.1:7003", 'transparent_to = ["192.0.2.0/24"]\n' + NO_ENGINE, "barred")
    redirect(7003)
    status, text = ask(SERVER[4], CLIENT[4], "x")
    expect((status, json.loads(text)["error"]["code"]), (403, "destination_not_allowed"))
    serin.stop()


def a_loop_is_seen():
    """A rule that catches Serin's own connections as well."""
    serin = Serin("127.0.0.1:7004", NO_ENGINE, "loop")
    rules("table inet t { chain out { type nat hook output priority -100;\nip daddr 10.9.0.9 tcp dport 8000 redirect to :7004\n}\n}\n")
    status, text = ask(SERVER[4], CLIENT[4], "x")
    expect((status, json.loads(text)["error"]["code"]), (508, "redirect_loop"))
    expect(serin.metric('serin_proxy_requests_total{outcome="proxy_refused",upstream="none"}'), 1.0)
    serin.stop()


def a_rule_for_all_but_its_own_user_catches_no_connection_of_its():
    """As docs/operating.md has it: on the client's own machine, all go to Serin but what Serin's user sends."""
    serin = Serin("127.0.0.1:7005", NO_ENGINE, "user", OTHER_USER)
    rules(
        "table inet t { chain out { type nat hook output priority -100;\n"
        f"tcp dport 8000 meta skuid != {OTHER_USER} redirect to :7005\n}}\n}}\n"
    )
    expect(ask(SERVER[4], CLIENT[4], "x"), (200, f"{SERVER[4]} heard x for meant.test"))
    expect(serin.metric('serin_proxy_requests_total{outcome="complete",upstream="original"}'), 1.0)
    serin.stop()


prepare()
both_kinds_of_address("")
an_upstream_is_known_by_its_address()
elsewhere_is_refused()
a_loop_is_seen()
a_rule_for_all_but_its_own_user_catches_no_connection_of_its()
rules("")
print("ok")
