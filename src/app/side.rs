//! The side thread: admin, health checks and canaries, so that none of them competes with traffic for its threads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounterVec, IntGaugeVec};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};

use crate::admin::Admin;
use crate::canary;
use crate::canary::driver::door::{self, Door};
use crate::canary::driver::pinned;
use crate::config::Config;
use crate::fidelity::tag;
use crate::metrics::Metrics;
use crate::server::tls::Tls;
use crate::server::{self, Server};
use crate::tls::files::Files;
use crate::units::Span;
use crate::upstream;
use crate::upstream::abort::Telling;
use crate::upstream::balance::Member;
use crate::upstream::checkup;

/// Everything the thread needs.
pub struct Side {
    pub listener: TcpListener,
    pub tls: Option<Tls>,
    pub admin: Admin,
    pub limits: server::Limits,
    pub canaries: Canaries,
    /// Tells upstreams of clients that left.
    pub telling: Telling,
    pub tasks: Tasks,
    /// Certificate files, and how often they are looked at.
    pub files: Files,
    pub files_every: Span,
    /// What is to run; changes with the configuration.
    pub orders: watch::Receiver<Arc<Orders>>,
    /// Traffic has been told to stop: no more probes.
    pub draining: watch::Receiver<bool>,
    pub stopped: watch::Receiver<bool>,
}

/// What a configuration wants to run here.
pub struct Orders {
    pub canary: canary::Config,
    pub checks: Vec<Check>,
}

/// One upstream with a path to ask for.
#[derive(Clone)]
pub struct Check {
    member: Arc<Member>,
    section: upstream::Config,
    every: Span,
}

/// What outlives every change of the canaries' configuration.
pub struct Canaries {
    pub traffic: SocketAddr,
    /// TLS of the traffic listener.
    pub tls: Option<Tls>,
    /// That listener lets nobody in without a certificate.
    pub must_show: bool,
    pub files: Files,
    pub tag_key: tag::Key,
    pub books: canary::Books,
}

/// The tasks that run.
struct Running {
    canary: JoinSet<()>,
    probing: Option<canary::Config>,
    checks: JoinSet<()>,
    known: Vec<(Check, AbortHandle)>,
    telling: JoinSet<()>,
    tasks: Tasks,
}

/// How the tasks do.
#[derive(Clone)]
pub struct Tasks {
    alive: IntGaugeVec,
    restarts: IntCounterVec,
}

/// How long a task that failed waits for its next life.
const PAUSE: Duration = Duration::from_secs(1);
const CANARY: &str = "canary";
const CHECKS: &str = "health_checks";

impl Tasks {
    pub fn new(metrics: &Metrics) -> Self {
        let label = &["task"];
        let alive =
            metrics.int_gauges("serin_task_alive", "1 while what runs beside the traffic runs.", label);
        let restarts =
            metrics.counters("serin_task_restarts_total", "Times it failed and was started anew.", label);
        for task in [CANARY, CHECKS] {
            restarts.with_label_values(&[task]);
        }
        Self { alive, restarts }
    }

    fn show(&self, task: &str, alive: bool) {
        self.alive.with_label_values(&[task]).set(alive.into());
    }

    fn failed(&self, task: &str) {
        self.restarts.with_label_values(&[task]).inc();
        tracing::error!(task, "it died and is started anew; please report what was logged before");
    }
}

impl Orders {
    pub fn new(config: &Config, members: &[Arc<Member>]) -> Self {
        let every = config.breaker.health_every;
        let checked = config.upstream.iter().zip(members).filter(|(section, _)| !section.health.is_empty());
        let check = |(section, member): (&upstream::Config, &Arc<Member>)| Check {
            member: member.clone(),
            section: section.clone(),
            every,
        };
        Self { canary: config.canary.clone(), checks: checked.map(check).collect() }
    }
}

impl Side {
    pub fn run(self) {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
            return tracing::error!("the admin side cannot start");
        };
        runtime.block_on(async {
            let listener = match tokio::net::TcpListener::from_std(self.listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "the admin side cannot start"),
            };
            let brief = server::Limits { drain: Span::seconds(1), connections: 64, ..self.limits };
            let permits = Arc::new(Semaphore::new(brief.connections));
            let serve = Server::new(listener, self.tls, brief, permits).run(self.admin, self.stopped, || ());
            let mut serve = std::pin::pin!(serve);
            let (mut orders, draining) = (self.orders, self.draining);
            let mut running = Running::new(self.tasks);
            running.telling.spawn(self.telling.run());
            running.telling.spawn(self.files.watch(self.files_every, draining.clone()));
            loop {
                let wanted = orders.borrow_and_update().clone();
                running.follow(&wanted, &self.canaries, &draining);
                tokio::select! {
                    _ = &mut serve => break,
                    Ok(()) = orders.changed() => {}
                    () = running.one_fails() => {
                        tokio::select! {
                            _ = &mut serve => break,
                            () = tokio::time::sleep(PAUSE) => {}
                        }
                    }
                }
            }
            running.end().await;
        });
    }
}

impl Running {
    fn new(tasks: Tasks) -> Self {
        let (canary, checks, telling) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        Self { canary, probing: None, checks, known: Vec::new(), telling, tasks }
    }

    /// Waits until a task has died of a fault, and forgets it, so that [`Self::follow`] starts it anew.
    async fn one_fails(&mut self) {
        let died = |ended: Result<(), JoinError>| ended.is_err_and(|error| error.is_panic());
        loop {
            tokio::select! {
                Some(ended) = self.canary.join_next() => if died(ended) {
                    self.probing = None;
                    return self.tasks.failed(CANARY);
                },
                Some(ended) = self.checks.join_next() => if died(ended) {
                    self.known.retain(|(_, task)| !task.is_finished());
                    return self.tasks.failed(CHECKS);
                },
                else => std::future::pending().await,
            }
        }
    }

    /// Ends what is wanted no more and starts what is new; the rest goes on undisturbed.
    fn follow(&mut self, wanted: &Orders, canaries: &Canaries, draining: &watch::Receiver<bool>) {
        self.known.retain(|(known, task)| {
            let kept = wanted.checks.iter().any(|check| check.is(known));
            if !kept {
                task.abort();
            }
            kept
        });
        for check in &wanted.checks {
            if !self.known.iter().any(|(known, _)| known.is(check)) {
                let Check { member, section, every } = check.clone();
                let task = self.checks.spawn(checkup::keep(member, section, every, draining.clone()));
                self.known.push((check.clone(), task));
            }
        }
        if self.probing.as_ref() != Some(&wanted.canary) {
            if self.probing.replace(wanted.canary.clone()).is_some() {
                canaries.books.metrics.forget();
            }
            // Tasks of their own: whatever happens to a canary, admin goes on.
            self.canary = JoinSet::new();
            canaries.start(&wanted.canary, draining).map(|run| self.canary.spawn(run));
        }
        self.tasks.show(CANARY, !self.canary.is_empty());
        self.tasks.show(CHECKS, !self.known.is_empty());
    }

    async fn end(mut self) {
        for tasks in [&mut self.canary, &mut self.checks, &mut self.telling] {
            tasks.shutdown().await;
        }
    }
}

impl Check {
    /// A member is kept only if nothing that concerns it has changed.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.member, &other.member)
    }
}

impl Canaries {
    fn start(
        &self,
        config: &canary::Config,
        draining: &watch::Receiver<bool>,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        if !config.enabled {
            return None;
        }
        let door = self.door(config).map_err(|why| tracing::warn!("no canaries will run: {why}")).ok()?;
        Some(canary::run(config.clone(), door, self.tag_key.clone(), self.books.clone(), draining.clone()))
    }

    /// The way to the traffic listener.
    fn door(&self, config: &canary::Config) -> Result<Door, String> {
        if self.must_show && config.identity().is_none() {
            return Err("[listen] requires a certificate of clients and they have none to show; set [canary] cert_file \
                        and key_file, or enabled = false"
                .to_owned());
        }
        let tls = self.tls.clone().map(|tls| pinned::connector(tls, config.identity(), &self.files));
        let door = Door::new(reachable(self.traffic), door::Limits::default());
        Ok(door.with_tls(tls.transpose().map_err(|error| format!("[canary] {error}"))?))
    }
}

/// The address under which we reach our own listener: one that listens everywhere is reached over loopback.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::dye::Registry;

    #[test]
    fn a_task_that_dies_is_forgotten_counted_and_started_anew() {
        let metrics = Metrics::default();
        let canaries = Canaries {
            traffic: ([127, 0, 0, 1], 1).into(),
            tls: None,
            must_show: false,
            files: Files::new(&metrics),
            tag_key: tag::Key::new([7; 32]),
            books: canary::Books {
                metrics: canary::Metrics::new(&metrics),
                live: Arc::new(Registry::new(64)),
                recorder: None,
            },
        };
        let wanted = Orders { canary: canary::Config::default(), checks: Vec::new() };
        let (_keep, draining) = watch::channel(false);
        let mut running = Running::new(Tasks::new(&metrics));
        running.probing = Some(wanted.canary.clone());
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            running.checks.spawn(async {});
            running.canary.spawn(async { panic!("a fault, for this test") });
            running.one_fails().await;
            assert_eq!((running.probing.as_ref(), running.canary.len()), (None, 0));
            running.follow(&wanted, &canaries, &draining);
            assert_eq!((running.probing.as_ref(), running.canary.len()), (Some(&wanted.canary), 1));
            running.checks.spawn(async { panic!("another") });
            running.one_fails().await;
            assert!(running.known.is_empty() && running.checks.is_empty());
        });
        for task in [CANARY, CHECKS] {
            assert_eq!(running.tasks.restarts.with_label_values(&[task]).get(), 1, "{task}");
        }
    }
}
