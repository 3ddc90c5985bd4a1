//! Serin: a transparent recording proxy with live fidelity canaries.
