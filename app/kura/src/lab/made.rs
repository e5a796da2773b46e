//! What made a replay's result, so that a file of it says so by itself.

use super::replay::window_ns;
use crate::cli::LabReplay;
use anyhow::Result;
use clap::ValueEnum;
use kura_admin::DiskClass;
use kura_experiments::{COMMIT, word};
use serde_json::{Value, json};
use std::path::Path;

/// The command, the program and the requests. The same command on the same trace tells the same.
pub fn made_by(command: &LabReplay) -> Result<Value> {
    let (from_ns, for_ns) = window_ns(command)?;
    Ok(json!({
        "command": line(command),
        "commit": COMMIT,
        "source": kura_experiments::identity(Path::new(&command.trace), command.seed)?,
        "window": { "from_ns": from_ns, "for_ns": for_ns },
        "acceleration": command.accelerate,
        "fit": command.fit.to_string(),
    }))
}

/// The command that does the same again; where the result is written to is no part of it.
fn line(command: &LabReplay) -> String {
    let LabReplay {
        trace, config, model, accelerate, from, lasts, closed_loop, fit, size, layout, prefill, seed, ..
    } = command;
    let mut words = vec!["kura".to_owned(), "lab".to_owned(), "replay".to_owned(), trace.clone()];
    let mut flag =
        |name: &str, value: Option<String>| words.extend(value.into_iter().flat_map(|it| [name.to_owned(), it]));
    let named = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    flag("--config", config.as_ref().map(|path| path.display().to_string()));
    for asked in model {
        let class = DiskClass::from(asked.class).name();
        flag("--model", Some(format!("{class}={}", asked.model)));
    }
    match closed_loop {
        Some(depth) => flag("--closed-loop", Some(depth.to_string())),
        None => flag("--accelerate", Some(accelerate.to_string())),
    }
    let time = |time: &std::time::Duration| humantime::format_duration(*time).to_string();
    flag("--from", from.as_ref().map(time));
    flag("--for", lasts.as_ref().map(time));
    flag("--fit", Some(fit.to_string()));
    flag("--size", size.as_ref().map(|size| size.0.to_string()));
    flag("--layout", named(layout.to_possible_value()));
    flag("--prefill", named(prefill.to_possible_value()));
    flag("--seed", Some(seed.to_string()));
    words.extend(command.verify.then(|| "--verify".to_owned()));
    words.iter().map(|text| word(text)).collect::<Vec<_>>().join(" ")
}
