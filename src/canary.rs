use std::sync::Arc;
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Config { pub enabled: bool }
#[derive(Clone)]
pub struct Metrics;
impl Metrics { pub fn new(_: &crate::metrics::Metrics) -> Self { Self } }
pub async fn run(_: Config, _: std::net::SocketAddr, _: crate::fidelity::tag::Key, _: Metrics, _: Arc<crate::fidelity::dye::Registry>, _: tokio::sync::watch::Receiver<bool>) {}
