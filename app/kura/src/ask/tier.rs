//! The tiers, as a user asks about them and holds volumes in them.

use crate::cli::TierCommand;
use crate::show::{NO_VOLUMES, Out, table, unread};
use crate::size::Size;
use anyhow::Result;
use kura_admin::{Client, TierChange, TierMove, TierRules, TierStatus, TierWhy, Volume};
use serde::Serialize;
use std::collections::BTreeSet;
use std::time::Duration;

/// How often to look for new moves.
const LOOK: Duration = Duration::from_millis(500);

/// Carries out a command on the tiers.
pub async fn tier(client: &Client, out: Out, command: TierCommand) -> Result<()> {
    match command {
        TierCommand::Status => out.show(&client.tier().await?, status),
        TierCommand::Why { volume, offset } => out.show(&client.tier_why(&volume, offset.0).await?, why),
        TierCommand::Pin { volume, to } => {
            // A pinned volume has neither floor nor ceiling.
            let change = TierChange { pin: Some(to.into()), floor_bytes: Some(0), ceiling_bytes: Some(0) };
            change_rules(client, out, &volume, change).await
        }
        TierCommand::Set { volume, floor, ceiling } => {
            let bytes = |size: Option<Size>| size.map(|size| size.0);
            let change = TierChange { pin: None, floor_bytes: bytes(floor), ceiling_bytes: bytes(ceiling) };
            change_rules(client, out, &volume, change).await
        }
        TierCommand::Rules => {
            let mut volumes = Vec::new();
            for Volume { name, .. } in client.volumes().await? {
                match client.tier_rules(&name).await {
                    // It was deleted meanwhile.
                    Err(error) if error.is_missing() => {}
                    rules => volumes.push(Ruled { volume: name, rules: rules? }),
                }
            }
            out.show(volumes.as_slice(), rules)
        }
        TierCommand::Moves { follow: false } => out.show(client.tier_moves().await?.as_slice(), |moves| match moves {
            [] => "no moves so far; `kura tier status` says what the policy looks at".to_owned(),
            moves => self::moves(moves),
        }),
        TierCommand::Moves { follow: true } => tokio::select! {
            done = follow(client, out) => done,
            () = unread() => Ok(()),
        },
    }
}

/// A volume, and what is said of its place in the tiers.
#[derive(Serialize)]
struct Ruled {
    volume: String,
    #[serde(flatten)]
    rules: TierRules,
}

fn rules(volumes: &[Ruled]) -> String {
    if volumes.is_empty() {
        return NO_VOLUMES.to_owned();
    }
    table(&["VOLUME", "RULES"], volumes.iter().map(|one| vec![one.volume.clone(), ruled(&one.rules)]))
}

async fn change_rules(client: &Client, out: Out, volume: &str, change: TierChange) -> Result<()> {
    let rules = client.change_tier_rules(volume, change).await?;
    out.show(&rules, |rules| format!("volume {volume}: {}", ruled(rules)))
}

/// Shows moves as they are decided, each once, until the server or the reader goes away, or the user has seen enough.
async fn follow(client: &Client, out: Out) -> Result<()> {
    let mut shown = BTreeSet::new();
    loop {
        let moves = client.tier_moves().await?;
        shown.retain(|seen| moves.iter().any(|one| (one.controller, one.number) == *seen));
        for one in &moves {
            if !shown.insert((one.controller, one.number)) {
                continue;
            }
            // A stream has no end that a list could have.
            if !out.show_line(one, line)? {
                return Ok(());
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn size(bytes: u64) -> String {
    Size(bytes).to_string()
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.1}%", part as f64 * 100.0 / whole.max(1) as f64)
}

fn status(tier: &TierStatus) -> String {
    let policy = tier.policy.as_ref().and_then(|policy| policy["policy"].as_str());
    let mut lines = vec![format!("policy      {}", policy.unwrap_or("off"))];
    if let Some(parameters) = tier.policy.as_ref().and_then(|policy| policy.as_object()) {
        let rest = parameters.iter().filter(|(name, _)| *name != "policy");
        lines.push(format!(
            "            {}",
            rest.map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
        ));
    }
    if let Some(hindrance) = &tier.hindrance {
        lines.push(format!("not at work {hindrance}"));
    }
    lines.push(format!(
        "fast tier   {} of {} in use, in regions of {}",
        size(tier.total_bytes - tier.free_bytes),
        size(tier.total_bytes),
        size(tier.region_bytes)
    ));
    lines.push(format!(
        "holds       {}, of which {} are newer than in the slow tier",
        size(tier.valid_bytes),
        size(tier.stale_bytes)
    ));
    lines.push(format!(
        "served      {} of {} reads ({}), {} of {} writes ({})",
        tier.fast_reads,
        tier.reads,
        share(tier.fast_reads, tier.reads),
        tier.fast_writes,
        tier.writes,
        share(tier.fast_writes, tier.writes)
    ));
    lines.push(format!("moves       {} decided, {} wait", tier.moves, size(tier.waiting_bytes)));
    lines.push(format!(
        "slow tier   {:.0}% busy, {:.1} requests at the busiest disk",
        tier.slow_utilisation * 100.0,
        tier.slow_queue
    ));
    lines.join("\n")
}

fn ruled(rules: &TierRules) -> String {
    let limit = |bytes: u64, none: &str| if bytes == 0 { none.to_owned() } else { size(bytes) };
    match rules.pin {
        Some(pin) => format!("held in the {} tier", pin.name()),
        None => format!(
            "the policy decides; floor {}, ceiling {}",
            limit(rules.floor_bytes, "none"),
            limit(rules.ceiling_bytes, "none")
        ),
    }
}

fn state(one: &TierMove) -> String {
    match (&one.failed, one.took_s) {
        (Some(failed), _) => format!("failed: {failed}"),
        (None, Some(took)) => format!("{took:.1} s"),
        (None, None) => "waits".to_owned(),
    }
}

fn line(one: &TierMove) -> String {
    format!(
        "{} {} {}+{} -> {}: {}",
        one.decided_at,
        one.volume,
        size(one.offset_bytes),
        size(one.len_bytes),
        one.to.name(),
        one.reason
    )
}

fn moves(moves: &[TierMove]) -> String {
    let header = ["DECIDED", "VOLUME", "OFFSET>", "LENGTH>", "TO", "COPIED>", "TOOK>", "WHY"];
    let row = |one: &TierMove| {
        vec![
            one.decided_at.to_string(),
            one.volume.clone(),
            size(one.offset_bytes),
            size(one.len_bytes),
            one.to.name().to_owned(),
            size(one.copied_bytes),
            state(one),
            one.reason.clone(),
        ]
    };
    table(&header, moves.iter().map(row))
}

fn why(why: &TierWhy) -> String {
    let region = &why.region;
    let of = why.lies_in.as_ref().map(|of| format!(" of {of}")).unwrap_or_default();
    let mut lines = vec![format!("region   {} at {}{of}", size(why.region_bytes), size(region.offset_bytes))];
    lines.push(match region.valid_bytes {
        0 => "lies     in the slow tier".to_owned(),
        valid => format!(
            "lies     {} in the fast tier, {} newer than in the slow one",
            size(valid),
            size(region.stale_bytes)
        ),
    });
    lines.push(format!("used     {} reads and {} writes in the last interval", region.reads, region.writes));
    lines.push(format!("rules    {}", ruled(&why.rules)));
    if let Some(verdict) = &why.verdict {
        lines.push(format!("policy   {verdict}"));
    }
    if let Some(last) = &why.last_move {
        lines.push(format!(
            "moved    {} to the {} tier ({}): {}",
            last.decided_at,
            last.to.name(),
            state(last),
            last.reason
        ));
    }
    lines.join("\n")
}
