//! How one call is written.

use super::mark::Mark;
use std::fmt;

/// How one call is written, between its marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// A JSON object with the name and the arguments as fields.
    Object {
        /// The field of the name; none where the name is itself the key of the arguments.
        name_key: Option<String>,
        arguments_key: String,
        /// From the object's beginning to the name, in quotes.
        before_name: Mark,
        /// From there to the arguments.
        before_arguments: Mark,
        /// From there to the object's end.
        after: Mark,
    },
    /// The name, then the arguments.
    Named {
        /// Between them.
        middle: Mark,
        arguments: Arguments,
    },
}

/// How the arguments after a name are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Arguments {
    /// As a JSON object.
    Json,
    /// Each parameter between marks.
    Fields(Fields),
    /// As an object whose keys have no quotes, and whose strings have `quote` in place of them.
    Bare { quote: Option<String> },
    /// As Python's keyword arguments, in parentheses.
    Python,
}

/// The marks of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    /// Before its name.
    pub open: Mark,
    /// Between its name and its value.
    pub middle: Mark,
    /// After its value.
    pub close: Mark,
}

impl Style {
    /// All marks.
    pub fn marks(&self) -> Vec<&Mark> {
        match self {
            Style::Object { .. } => Vec::new(),
            Style::Named { middle, arguments: Arguments::Fields(fields) } => {
                vec![middle, &fields.open, &fields.middle, &fields.close]
            }
            Style::Named { middle, .. } => vec![middle],
        }
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Style::Object { before_name, before_arguments, after, .. } => {
                write!(f, "{before_name}NAME{before_arguments}JSON{after}")
            }
            Style::Named { middle, arguments } => match arguments {
                Arguments::Json => write!(f, "NAME{middle}JSON"),
                Arguments::Bare { quote } => {
                    write!(f, "NAME{middle}BARE{}", quote.as_deref().unwrap_or("\""))
                }
                Arguments::Python => write!(f, "NAME{middle}PYTHON"),
                Arguments::Fields(Fields { open, middle: of, close }) => {
                    write!(f, "NAME{middle}[{open}KEY{of}VALUE{close}]")
                }
            },
        }
    }
}
