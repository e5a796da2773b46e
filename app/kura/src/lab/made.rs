//! What made a replay's result, so that a file of it says so by itself.

use crate::cli::LabReplay;
use crate::size::Size;
use anyhow::Result;
use clap::ValueEnum;
use kura_admin::DiskClass;
use kura_experiments::{COMMIT, word};
use serde_json::{Value, json};
use std::path::Path;

/// The command, the program and the requests, with the form that a trace was found to be of. The same command on the same trace
/// tells the same. The trace is read for it, all of it.
pub fn made_by(command: &LabReplay) -> Result<Value> {
    let (from_ns, for_ns) = command.window_ns();
    let trace = Path::new(&command.trace);
    let form = if command.load().is_none() { Some(kura_trace::open(trace)?.format().to_string()) } else { None };
    Ok(json!({
        "command": line(command),
        "commit": COMMIT,
        "source": kura_experiments::identity(trace, command.seed())?,
        "form": form,
        "window": { "from_ns": from_ns, "for_ns": for_ns },
        "acceleration": command.accelerate,
        "fit": command.fit.to_string(),
    }))
}

/// The command that does the same again; where the result is written to is no part of it.
fn line(command: &LabReplay) -> String {
    let LabReplay { trace, config, model, accelerate, from, lasts, warm, closed_loop, fit, size, policy, fast, .. } =
        command;
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
    flag("--warm", warm.as_ref().map(time));
    flag("--fit", Some(fit.to_string()));
    let bytes = |size: &Size| size.0.to_string();
    flag("--size", size.as_ref().map(bytes));
    flag("--policy", policy.clone());
    flag("--fast", fast.as_ref().map(bytes));
    // What says nothing to a policy it refuses.
    let replays = policy.is_none();
    flag("--layout", named(command.layout.to_possible_value()).filter(|_| replays));
    flag("--prefill", named(command.prefill.to_possible_value()).filter(|_| replays));
    flag("--seed", (replays || command.load().is_some()).then(|| command.seed().to_string()));
    words.extend(command.verify.then(|| "--verify".to_owned()));
    words.iter().map(|text| word(text)).collect::<Vec<_>>().join(" ")
}
