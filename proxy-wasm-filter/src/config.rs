//! The plugin's configuration, as the host hands it over: the core reads it
//! ([`Plugin`]).

use tollgate_core::key::Seed;
use tollgate_core::policy::plugin::{Connection, Plugin};

/// Reads the configuration.
///
/// # Errors
/// All that is wrong, a line each.
pub(crate) fn read(bytes: &[u8]) -> Result<Plugin, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("byte {}: the configuration is not UTF-8", error.valid_up_to()))?;
    if text.trim().is_empty() {
        return Err("there is no configuration; it needs at least { \"rules\": { … } }".into());
    }
    // The clock is the system's: it counts from 1970.
    let seed = Seed(crate::abi::random().unwrap_or([1, 2]));
    Plugin::parse(text, seed, 0).map_err(|errors| {
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        lines.join("\n")
    })
}

/// The password, which is never in the configuration: that is shown to whoever
/// may ask the host for it.
///
/// # Errors
/// The VM has no such variable.
pub(crate) fn password(connection: &Connection) -> Result<Option<Vec<u8>>, String> {
    let Some(name) = &connection.password_env else { return Ok(None) };
    let value = crate::abi::environment(name).filter(|value| !value.is_empty());
    let missing = || {
        format!(
            "redis.password_env: the VM has no variable {name:?}; \
             vm_config.environment_variables.host_env_keys hands one over"
        )
    };
    value.map(Some).ok_or_else(missing)
}
