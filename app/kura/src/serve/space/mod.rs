//! A pool that gets full is told of before writes find it so: one line of log at each threshold, and a line in `kura status`
//! for as long as it is passed.

mod policy;

use crate::size::Size;
use kura_admin::Pool;
use kura_controller::Node;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::interval;

/// How often the pool's use is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Tells `pass` which of the thresholds `at_percent` the pool's use has passed, and logs when that changes, until the server
/// stops.
pub async fn watch_over(
    node: Node,
    at_percent: Vec<u8>,
    pass: watch::Sender<Option<u8>>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut ticks = interval(LOOK);
    loop {
        tokio::select! {
            _ = stopping.changed() => return,
            _ = ticks.tick() => {}
        }
        if let Err(error) = look(&node, &at_percent, &pass).await {
            tracing::debug!(%error, "the pool's use could not be asked for; trying again");
        }
    }
}

async fn look(node: &Node, at_percent: &[u8], pass: &watch::Sender<Option<u8>>) -> kura_block::Result<()> {
    let before = *pass.borrow();
    let pool = node.pool().await?;
    let used_bytes = pool.data_bytes.saturating_sub(pool.free_bytes);
    let now = policy::passed(at_percent, before, used_bytes, pool.data_bytes);
    if now == before {
        return Ok(());
    }
    let pool = Pool::new(pool, node.space().await?, now);
    pass.send_replace(now);
    match warning(&pool).filter(|_| now > before) {
        Some(warning) => tracing::warn!("{warning}"),
        None => {
            let least = at_percent.iter().find(|at| Some(**at) > now).copied().unwrap_or_default();
            tracing::info!("{} of the pool are used: less than {least}% again", used(&pool));
        }
    }
    Ok(())
}

fn used(pool: &Pool) -> String {
    let percent = u128::from(pool.used_bytes()) * 100 / u128::from(pool.data_bytes.max(1));
    format!("{percent}% ({} of {})", Size(pool.used_bytes()), Size(pool.data_bytes))
}

/// What is to be known of a pool that has passed a threshold, in a line.
pub fn warning(pool: &Pool) -> Option<String> {
    let passed = pool.passed_percent?;
    let delete = match pool.snapshot_bytes {
        0 => "delete volumes",
        _ => "delete snapshots (`kura snapshot list` shows what each alone holds) or volumes",
    };
    let (volumes, snapshots) = (Size(pool.volume_bytes), Size(pool.snapshot_bytes));
    let more = |what: &str, bytes: u64| if bytes > 0 { format!(", {what} {}", Size(bytes)) } else { String::new() };
    let hot = more("the hot area", pool.hot_bytes);
    // What is given up and not free yet.
    let other = pool.used_bytes().saturating_sub(pool.volume_bytes + pool.snapshot_bytes + pool.hot_bytes);
    let other = more("other", other);
    Some(format!(
        "the pool is filling up: {} are used, {passed}% is passed; {} are free, volumes hold {volumes}, snapshots \
         {snapshots}{hot}{other}: {delete}, trim what is not needed, or add a disk (`kura disk add`)",
        used(pool),
        Size(pool.free_bytes),
    ))
}
