//! As much of the wire format as a client needs that is not to be the bottleneck: commands out, the length of a reply in.

/// Appends a command to `out`.
pub fn command(words: &[&[u8]], out: &mut Vec<u8>) {
    head(b'*', words.len(), out);
    for word in words {
        head(b'$', word.len(), out);
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

/// The length of the first whole reply; `None` if it is not all there yet.
pub fn reply_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let (kind, mut end) = (bytes[0], line + 2);
    let number = || std::str::from_utf8(&bytes[1..line]).ok()?.parse::<i64>().ok();
    match kind {
        b'$' => match usize::try_from(number()?) {
            Ok(len) => end += len + 2,
            Err(_) => return Some(end),
        },
        b'*' => {
            for _ in 0..number()? {
                end += reply_len(bytes.get(end..)?)?;
            }
        }
        _ => {}
    }
    (end <= bytes.len()).then_some(end)
}

fn head(kind: u8, number: usize, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(number.to_string().as_bytes());
    out.extend_from_slice(b"\r\n");
}
