//! The configuration that a command reads: an argument, the option `--config`, or the default file.

use std::path::{Path, PathBuf};

use super::{Exit, print_error};

/// The default file.
pub(super) const DEFAULT: &str = "config/tidegate.yaml";

/// The option that names the configuration.
#[derive(clap::Args, Debug)]
pub(super) struct ConfigOption {
    /// The configuration file [default: config/tidegate.yaml].
    #[arg(long, short, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
}

/// The configuration, as an argument or an option.
#[derive(clap::Args, Debug)]
pub(super) struct ConfigFile {
    /// The configuration file.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) option: ConfigOption,
}

impl ConfigOption {
    /// The named file, or the default one if it exists.
    pub(super) fn path(&self) -> Result<&Path, Exit> {
        existing(self.config.as_deref())
    }
}

impl ConfigFile {
    /// The named file, or the default one if it exists.
    pub(super) fn path(&self) -> Result<&Path, Exit> {
        existing(self.file.as_deref().or(self.option.config.as_deref()))
    }
}

/// True if `argument` names a configuration, for a command that also takes other arguments.
pub(super) fn is_config(argument: &Path) -> bool {
    argument.extension().is_some_and(|kind| kind == "yaml" || kind == "yml")
}

/// True if the default file exists, or if that cannot be checked: reading it then reports the
/// error.
pub(super) fn default_exists() -> bool {
    Path::new(DEFAULT).try_exists().unwrap_or(true)
}

/// `named`, or the default file. Without either, prints how to make one.
pub(super) fn existing(named: Option<&Path>) -> Result<&Path, Exit> {
    if named.is_some() || default_exists() {
        return Ok(named.unwrap_or(Path::new(DEFAULT)));
    }
    Err(print_error(&format!(
        "tidegate: no configuration: none is named, and {DEFAULT} does not exist\n  \
         tidegate init                        writes {DEFAULT}, to be edited\n  \
         tidegate proxy --to localhost:3000   runs without a file\n  \
         tidegate serve FILE                  runs with FILE, which check, explain and replay also take"
    )))
}
