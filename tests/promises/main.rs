//! The README's promises, one file each, kept against a real Serin on real sockets.

mod support;

mod ambiguous_requests_are_refused;
mod answers_come_from_the_embedded_engine;
mod bad_input_is_one_clear_line;
mod bytes_are_identical_to_direct;
mod canaries_find_a_loss_and_never_cry_wolf;
mod cancelling_reaches_the_upstream;
mod configuration_is_reloaded;
mod conversations_stay_with_an_upstream;
mod drain_finishes_what_runs;
mod each_client_has_its_limits;
mod every_exchange_ends_as_it_did;
mod every_metric_is_documented;
mod fallback_is_labelled;
mod limits_are_kept;
mod models_arrive_late_and_checked;
mod official_clients_work;
mod recording_never_touches_traffic;
mod records_survive_a_kill;
mod secrets_never_reach_the_disk;
mod the_admin_side_keeps_to_itself;
mod the_log_never_holds_traffic_up;
mod three_turns_are_one_conversation;
mod traces_reach_a_collector;
mod transport_is_http_and_tls;
mod upgrades_pass_through;
mod upstreams_may_speak_http_2;
mod upstreams_share_the_load;
