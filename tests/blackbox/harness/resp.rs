//! The wire format: commands out, RESP2 and RESP3 values in. No sockets here, so a value may arrive in any number of
//! pieces.

use super::reply::Reply;

/// Appends `args` to `out` in the form of a request.
pub fn encode<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        let arg = arg.as_ref();
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// The first value in `bytes` and its length; `None` if it is not all there yet. Panics on what no server may send.
pub fn decode(bytes: &[u8]) -> Option<(Reply, usize)> {
    let mut reader = Reader { bytes, at: 0 };
    let reply = reader.value()?;
    Some((reply, reader.at))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self) -> Option<Reply> {
        let line = self.line()?;
        let Some((kind, rest)) = line.split_first() else {
            panic!("an empty line where a reply must start");
        };
        Some(match kind {
            b'+' => Reply::Simple(rest.to_vec()),
            b'-' => Reply::Error(String::from_utf8_lossy(rest).into_owned()),
            b':' => Reply::Int(number(rest)),
            b'$' if rest == b"-1" => Reply::NullBulk,
            b'$' => Reply::Bulk(self.blob(rest)?),
            b'*' if rest == b"-1" => Reply::NullArray,
            b'*' => Reply::Array(self.values(rest)?),
            b'_' => Reply::Null,
            b'#' => Reply::Bool(rest == b"t"),
            b',' => Reply::Double(number(rest)),
            b'(' => Reply::BigNumber(rest.to_vec()),
            b'=' => Reply::Verbatim(self.blob(rest)?),
            b'!' => Reply::Error(String::from_utf8_lossy(&self.blob(rest)?).into_owned()),
            b'~' => Reply::Set(self.values(rest)?),
            b'>' => Reply::Push(self.values(rest)?),
            b'%' => Reply::Map(self.pairs(rest)?),
            b'|' => {
                // Attributes are hints about the value that follows.
                self.pairs(rest)?;
                self.value()?
            }
            _ => panic!("no reply starts like this: {}", line.escape_ascii()),
        })
    }

    fn values(&mut self, count: &[u8]) -> Option<Vec<Reply>> {
        (0..number::<usize>(count)).map(|_| self.value()).collect()
    }

    fn pairs(&mut self, count: &[u8]) -> Option<Vec<(Reply, Reply)>> {
        (0..number::<usize>(count)).map(|_| Some((self.value()?, self.value()?))).collect()
    }

    fn blob(&mut self, length: &[u8]) -> Option<Vec<u8>> {
        let end = self.at + number::<usize>(length);
        let blob = self.bytes.get(self.at..end)?.to_vec();
        let tail = self.bytes.get(end..end + 2)?;
        assert_eq!(tail, b"\r\n", "a string runs past its stated length");
        self.at = end + 2;
        Some(blob)
    }

    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let length = rest.windows(2).position(|pair| pair == b"\r\n")?;
        self.at += length + 2;
        Some(&rest[..length])
    }
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> T {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| panic!("not a number: {}", digits.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_taken_only_when_whole() {
        let wire = b"*2\r\n$3\r\na\r\n\r\n:-7\r\n";
        for cut in 0..wire.len() {
            assert_eq!(decode(&wire[..cut]), None, "cut at {cut}");
        }
        let expected = Reply::Array(vec![Reply::Bulk(b"a\r\n".to_vec()), Reply::Int(-7)]);
        assert_eq!(decode(wire), Some((expected, wire.len())));
    }

    #[test]
    fn nulls_stay_apart() {
        let of = |wire: &[u8]| decode(wire).expect("a whole value").0;
        assert_eq!(of(b"$-1\r\n"), Reply::NullBulk);
        assert_eq!(of(b"*-1\r\n"), Reply::NullArray);
        assert_eq!(of(b"_\r\n"), Reply::Null);
    }
}
