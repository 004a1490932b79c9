//! One bucket: ten requests a minute, five at once.
//! `cargo run -p tollgate-core --example bucket`

use std::error::Error;
use std::time::Instant;

use tollgate_core::{Bucket, Limit};

fn main() -> Result<(), Box<dyn Error>> {
    let limit: Limit = "10/m burst 5".parse()?;
    let bucket = Bucket::new(limit)?; // may be shared by threads as it is
    let start = Instant::now();
    for request in 1..=6 {
        let now = u64::try_from(start.elapsed().as_nanos())?; // any clock that does not step back
        let decision = bucket.check(1, now);
        println!(
            "request {request}: {}, {} left, retry after {} ms",
            if decision.allowed { "allowed" } else { "denied" },
            decision.remaining,
            decision.retry_after.div_ceil(1_000_000), // all times are nanoseconds
        );
    }
    Ok(())
}
