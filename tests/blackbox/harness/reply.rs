//! A reply of the server, as told on the wire: the three nulls stay apart, bytes stay bytes. The accessors panic with
//! the whole reply, so a test reads as a statement.

use std::fmt;

/// One RESP2 or RESP3 value.
#[derive(Clone, PartialEq)]
pub enum Reply {
    Simple(Vec<u8>),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    /// `_` of RESP3.
    Null,
    /// `$-1` of RESP2.
    NullBulk,
    /// `*-1` of RESP2.
    NullArray,
    Array(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Set(Vec<Self>),
    Double(f64),
    Bool(bool),
    BigNumber(Vec<u8>),
    /// With its format, as in `txt:...`.
    Verbatim(Vec<u8>),
    Push(Vec<Self>),
}

impl Reply {
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(value) => *value,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn bulk(&self) -> &[u8] {
        match self {
            Self::Bulk(value) => value,
            other => panic!("expected a bulk string, got {other:?}"),
        }
    }

    /// The text of a simple, bulk or verbatim string.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(value) | Self::Bulk(value) => String::from_utf8_lossy(value).into_owned(),
            Self::Verbatim(value) => String::from_utf8_lossy(&value[4..]).into_owned(),
            other => panic!("expected text, got {other:?}"),
        }
    }

    /// The elements of an array, a set or a push.
    #[track_caller]
    pub fn array(&self) -> &[Self] {
        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items,
            other => panic!("expected an array, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn err(&self) -> &str {
        match self {
            Self::Error(text) => text,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn ok(&self) {
        assert!(self.is("OK"), "expected OK, got {self:?}");
    }

    /// True if this is the simple string `text`, such as `QUEUED`.
    pub fn is(&self, text: &str) -> bool {
        matches!(self, Self::Simple(value) if value == text.as_bytes())
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// True for any of the three nulls.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null | Self::NullBulk | Self::NullArray)
    }

    /// The value of `field` in a map or in an array of names and values.
    #[track_caller]
    pub fn get(&self, field: &str) -> &Self {
        self.find(field).unwrap_or_else(|| panic!("no field {field:?} in {self:?}"))
    }

    /// Like `get`, for fields that may be absent.
    pub fn find(&self, field: &str) -> Option<&Self> {
        let named = |key: &Self| match key {
            Self::Simple(name) | Self::Bulk(name) => name == field.as_bytes(),
            _ => false,
        };
        match self {
            Self::Map(pairs) => pairs.iter().find(|(key, _)| named(key)).map(|(_, value)| value),
            Self::Array(items) => items.chunks_exact(2).find(|pair| named(&pair[0])).map(|pair| &pair[1]),
            _ => None,
        }
    }

    /// The field names of a map or of an array of names and values, in order.
    #[track_caller]
    pub fn fields(&self) -> Vec<String> {
        match self {
            Self::Map(pairs) => pairs.iter().map(|(key, _)| key.text()).collect(),
            Self::Array(items) => items.chunks_exact(2).map(|pair| pair[0].text()).collect(),
            other => panic!("expected a map, got {other:?}"),
        }
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simple(value) => write!(f, "+{}", value.escape_ascii()),
            Self::Error(text) => write!(f, "-{text}"),
            Self::Int(value) => write!(f, ":{value}"),
            Self::Bulk(value) => write!(f, "\"{}\"", value.escape_ascii()),
            Self::Null => f.write_str("_"),
            Self::NullBulk => f.write_str("$-1"),
            Self::NullArray => f.write_str("*-1"),
            Self::Array(items) => f.debug_list().entries(items).finish(),
            Self::Map(pairs) => f.debug_map().entries(pairs.iter().map(|(key, value)| (key, value))).finish(),
            Self::Set(items) => f.debug_set().entries(items).finish(),
            Self::Double(value) => write!(f, ",{value}"),
            Self::Bool(value) => write!(f, "#{value}"),
            Self::BigNumber(digits) => write!(f, "({}", digits.escape_ascii()),
            Self::Verbatim(value) => write!(f, "=\"{}\"", value.escape_ascii()),
            Self::Push(items) => {
                f.write_str(">")?;
                f.debug_list().entries(items).finish()
            }
        }
    }
}
