//! A client that costs little: requests are signed before the clock starts, and a connection is kept for all of them.

use super::super::http::Connection;
use super::sign::{Credentials, Request, content_sum, signed};
use anyhow::{Result, bail, ensure};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// What the clients of a measurement ask for, each of its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Put,
    Get,
}

/// What a measurement gave.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub ops_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// Puts or gets `count` objects of `body`, by so many clients at once; every answer is looked at, content and all.
pub fn work(
    at: SocketAddr,
    credentials: &Credentials,
    verb: Verb,
    body: &[u8],
    clients: usize,
    count: usize,
) -> Result<Figures> {
    let each = count.div_ceil(clients);
    let (verb_text, len, sum) = match verb {
        Verb::Put => ("PUT", body.len(), content_sum(body)),
        Verb::Get => ("GET", 0, content_sum(&[])),
    };
    let mut all = Vec::new();
    for client in 0..clients {
        let heads: Vec<String> = (0..each)
            .map(|number| {
                let path = format!("/bench/{}/{client:02}-{number:06}", body.len());
                signed(credentials, at, &Request { verb: verb_text, path: &path, len, sum: &sum })
            })
            .collect();
        all.push((Connection::tcp(at)?, heads));
    }
    let start = Instant::now();
    let each_took: Vec<Result<Vec<f64>>> = std::thread::scope(|scope| {
        let clients: Vec<_> = all
            .into_iter()
            .map(|(mut connection, heads)| scope.spawn(move || ask_all(&mut connection, &heads, verb, body)))
            .collect();
        clients.into_iter().map(|client| client.join().unwrap_or_else(|_| bail!("a client panicked"))).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let mut took_ms: Vec<f64> = each_took.into_iter().collect::<Result<Vec<_>>>()?.concat();
    took_ms.sort_by(f64::total_cmp);
    let at = |share: f64| took_ms[((took_ms.len() - 1) as f64 * share) as usize];
    Ok(Figures { ops_s: took_ms.len() as f64 / seconds, p50_ms: at(0.5), p99_ms: at(0.99) })
}

fn ask_all(connection: &mut Connection<TcpStream>, heads: &[String], verb: Verb, body: &[u8]) -> Result<Vec<f64>> {
    let mut took_ms = Vec::with_capacity(heads.len());
    for head in heads {
        let start = Instant::now();
        let answer = connection.ask(head, if verb == Verb::Put { body } else { &[] })?;
        took_ms.push(start.elapsed().as_secs_f64() * 1e3);
        ensure!(verb == Verb::Put || *answer == *body, "what was read is not what was put");
    }
    Ok(took_ms)
}
