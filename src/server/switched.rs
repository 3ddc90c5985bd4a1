//! What a connection goes on with after it has stopped speaking HTTP (RFC 9110 section 7.8).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

/// What is to be done with the connection then.
pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where the answer to a request leaves what its connection goes on with. Travels in the request's extensions.
#[derive(Clone, Default)]
pub struct Place(Arc<Mutex<Option<Rest>>>);

impl Place {
    /// To be run once the connection has sent its last HTTP byte.
    pub fn put(&self, rest: Rest) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(rest);
    }

    pub fn take(&self) -> Option<Rest> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
