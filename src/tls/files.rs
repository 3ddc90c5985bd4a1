//! Everything that was made from certificate files, looked at now and then and made anew when they have changed. What
//! cannot be made anew leaves the old in force, and is told once.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use prometheus::{IntCounterVec, IntGaugeVec};
use tokio::sync::watch;

use super::{Reader, fingerprint};
use crate::metrics::Metrics;
use crate::units::Span;

/// Something made from files; whoever asks gets the newest.
pub struct Live<T>(RwLock<Arc<T>>);

/// All that was made from files. Cheap to clone.
#[derive(Clone)]
pub struct Files(Arc<Shared>);

struct Shared {
    expiry: IntGaugeVec,
    stale: IntGaugeVec,
    reloads: IntCounterVec,
    watched: Mutex<Vec<Watched>>,
}

type Made = Result<(), String>;

/// One thing made from files.
struct Watched {
    /// The section of the configuration that names the files.
    section: String,
    /// What was read when it was last made.
    used: Vec<(PathBuf, blake3::Hash)>,
    bad: Option<Bad>,
    /// Expiries shown for it.
    shown: Vec<(PathBuf, i64)>,
    make: Box<dyn Fn(&mut Reader) -> Made + Send>,
    /// Whether anybody still uses it.
    wanted: Box<dyn Fn() -> bool + Send>,
}

/// Files that could not be used.
struct Bad {
    read: Vec<(PathBuf, blake3::Hash)>,
    why: String,
    told: bool,
}

impl<T> Live<T> {
    /// Something that will not change.
    pub fn fixed(value: T) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(value))))
    }

    pub fn get(&self) -> Arc<T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}

impl Files {
    pub fn new(metrics: &Metrics) -> Self {
        Self(Arc::new(Shared {
            expiry: metrics.int_gauges(
                "serin_tls_certificate_expiry_timestamp_seconds",
                "Unix time at which the first certificate of a chain in use expires.",
                &["section", "file"],
            ),
            stale: metrics.int_gauges(
                "serin_tls_files_stale",
                "1 while files on disk have changed and cannot be used, so that older ones are still in force.",
                &["section"],
            ),
            reloads: metrics.counters(
                "serin_tls_reloads_total",
                "Changes of certificate files that were noticed, by whether they could be used.",
                &["section", "outcome"],
            ),
            watched: Mutex::default(),
        }))
    }

    /// Makes something from files now, and again whenever what `make` read has changed. `section` names it.
    pub fn load<T: Send + Sync + 'static>(
        &self,
        section: &str,
        make: impl Fn(&mut Reader) -> Result<T, String> + Send + 'static,
    ) -> Result<Arc<Live<T>>, String> {
        let mut reader = Reader::default();
        let live = Live::fixed(make(&mut reader)?);
        let (into, user) = (Arc::downgrade(&live), Arc::downgrade(&live));
        let make = Box::new(move |reader: &mut Reader| {
            let value = make(reader)?;
            if let Some(live) = into.upgrade() {
                live.set(value);
            }
            Ok(())
        });
        let wanted = Box::new(move || Weak::strong_count(&user) > 0);
        self.0.stale.with_label_values(&[section]).set(0);
        for outcome in ["loaded", "rejected"] {
            self.0.reloads.with_label_values(&[section, outcome]);
        }
        self.0.show(section, &reader.expiries);
        let (used, shown) = (reader.read, reader.expiries);
        let watched = Watched { section: section.to_owned(), used, bad: None, shown, make, wanted };
        self.0.watched.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
        Ok(live)
    }

    /// Looks at every file once.
    pub fn look(&self) {
        let mut watched = self.0.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<_> = watched.extract_if(.., |one| !(one.wanted)()).collect();
        for gone in &gone {
            if !watched.iter().any(|one| one.section == gone.section) {
                let _ = self.0.stale.remove_label_values(&[&gone.section]);
            }
            for (file, _) in &gone.shown {
                let _ = self.0.expiry.remove_label_values(&[&gone.section, &file.display().to_string()]);
            }
        }
        watched.iter_mut().for_each(|one| one.look(&self.0));
    }

    /// Looks at every file now and then, until told to stop.
    pub async fn watch(self, every: Span, mut stop: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(every.0) => {}
            }
            let files = self.clone();
            // A disk may be slow.
            if tokio::task::spawn_blocking(move || files.look()).await.is_err() {
                tracing::error!("looking at certificate files failed; they are not looked at any more");
                return;
            }
        }
    }
}

impl Shared {
    fn show(&self, section: &str, expiries: &[(PathBuf, i64)]) {
        for (file, at) in expiries {
            self.expiry.with_label_values(&[section, &file.display().to_string()]).set(*at);
        }
    }

    fn count(&self, section: &str, outcome: &str) {
        self.reloads.with_label_values(&[section, outcome]).inc();
        self.stale.with_label_values(&[section]).set((outcome == "rejected").into());
    }
}

impl Watched {
    fn look(&mut self, shared: &Shared) {
        // Another with the same name may have taken them away.
        shared.show(&self.section, &self.shown);
        let last = self.bad.as_ref().map_or(&self.used, |bad| &bad.read);
        if as_read(last) {
            // Told at the second look only: a certificate and its key are seldom replaced in one moment.
            if let Some(bad) = self.bad.as_mut().filter(|bad| !bad.told) {
                bad.told = true;
                tracing::warn!(
                    "[{}] {}; the files read before stay in force until this is mended",
                    self.section,
                    bad.why
                );
                shared.count(&self.section, "rejected");
            }
            return;
        }
        if self.bad.is_some() && as_read(&self.used) {
            self.bad = None;
            shared.stale.with_label_values(&[&self.section]).set(0);
            return tracing::info!("[{}] certificate files are as they were before", self.section);
        }
        let mut reader = Reader::default();
        match (self.make)(&mut reader) {
            Ok(()) => {
                shared.count(&self.section, "loaded");
                tracing::info!("[{}] certificate files have changed and are in use", self.section);
                (self.used, self.bad, self.shown) = (reader.read, None, reader.expiries);
                shared.show(&self.section, &self.shown);
            }
            Err(why) => self.bad = Some(Bad { read: reader.read, why, told: false }),
        }
    }
}

/// Whether the files hold what they held when they were read.
fn as_read(read: &[(PathBuf, blake3::Hash)]) -> bool {
    read.iter().all(|(path, held)| fingerprint(&std::fs::read(path)) == *held)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metrics: &Metrics, series: &str) -> Option<String> {
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        let line = text.lines().find(|line| line.starts_with(series))?;
        Some(line.rsplit(' ').next()?.to_owned())
    }

    #[test]
    fn a_change_is_taken_a_bad_one_is_told_once_and_the_old_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        std::fs::write(&path, "1").unwrap();
        let metrics = Metrics::default();
        let files = Files::new(&metrics);
        let from = path.clone();
        let number = move |reader: &mut Reader| {
            let text =
                String::from_utf8(reader.bytes("number", &from)?).map_err(|error| error.to_string())?;
            text.parse::<u32>().map_err(|error| error.to_string())
        };
        let live = files.load("listen", number).unwrap();
        let count = |outcome: &str| {
            let series = format!("serin_tls_reloads_total{{outcome=\"{outcome}\",section=\"listen\"}}");
            value(&metrics, &series).unwrap()
        };
        let stale = || value(&metrics, "serin_tls_files_stale{section=\"listen\"}").unwrap();
        files.look();
        assert_eq!((*live.get(), count("loaded"), stale()), (1, "0".into(), "0".into()));
        std::fs::write(&path, "2").unwrap();
        files.look();
        assert_eq!((*live.get(), count("loaded")), (2, "1".into()));
        std::fs::write(&path, "two").unwrap();
        for (look, rejected) in ["0", "1", "1"].into_iter().enumerate() {
            files.look();
            assert_eq!((*live.get(), count("rejected")), (2, rejected.into()), "look {look}");
        }
        assert_eq!(stale(), "1");
        std::fs::remove_file(&path).unwrap();
        files.look();
        files.look();
        assert_eq!((*live.get(), count("rejected"), stale()), (2, "2".into(), "1".into()));
        // What is in force comes back: nothing is loaded, and nothing is stale.
        std::fs::write(&path, "2").unwrap();
        files.look();
        assert_eq!((*live.get(), count("loaded"), stale()), (2, "1".into(), "0".into()));
        std::fs::write(&path, "3").unwrap();
        files.look();
        assert_eq!((*live.get(), count("loaded"), stale()), (3, "2".into(), "0".into()));
    }
}
