//! What a panic ends.
//!
//! One is a fault of kura: on a thread of the engine nobody knows what it has left half changed, and the process ends, as from a power
//! cut. But what strangers send over HTTP goes through parsers of many libraries before anything of kura looks at it, and one
//! request that none of them foresaw must not end everybody's volumes: on the threads that serve HTTP a panic ends the connection and
//! nothing else. They ask the engine by messages, and hold nothing of it; what is not to stop halfway goes on elsewhere.

use std::panic;

/// The name of threads that serve HTTP.
pub const HTTP: &str = "http";

/// From now on a panic ends the process, but for one on a thread that serves HTTP.
pub fn limit() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |fault| {
        tell(fault);
        if std::thread::current().name() != Some(HTTP) {
            std::process::abort();
        }
        tracing::error!(%fault, "a fault in kura: what was asked for ends here, and nothing else: please report it");
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    const ON: &str = "KURA_TEST_PANICS_ON";

    /// It runs itself again, as the process that is to end or not.
    #[test]
    fn a_panic_ends_the_process_but_where_http_is_served() {
        if let Ok(name) = std::env::var(ON) {
            limit();
            let thread = std::thread::Builder::new().name(name);
            assert!(thread.spawn(|| panic!("on purpose")).unwrap().join().is_err());
            return;
        }
        for (thread, signal) in [(HTTP, None), ("doors", Some(6)), ("controller-0", Some(6))] {
            let mut again = Command::new(std::env::current_exe().unwrap());
            let (_, room) = module_path!().split_once("::").unwrap();
            let this = format!("{room}::a_panic_ends_the_process_but_where_http_is_served");
            let ended = again.args(["--exact", &this]).env(ON, thread).output().unwrap().status;
            assert_eq!((ended.success(), ended.signal()), (signal.is_none(), signal), "{thread}");
        }
    }
}
