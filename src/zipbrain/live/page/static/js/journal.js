// The newest lines of the journal as a list, newest first.
import { journalWords } from "./words.js";

const MOST = 60; // lines shown

// Fills the list, and returns the newest line in words.
export function listJournal(list, lines) {
  const items = lines.slice(-MOST).reverse().map((line) => {
    const [words, kind] = journalWords(line);
    const item = document.createElement("li");
    if (kind) item.className = kind;
    const time = document.createElement("time");
    time.dateTime = line.time;
    time.textContent = new Date(line.time).toLocaleTimeString("en-GB");
    const text = document.createElement("span");
    text.textContent = words;
    item.append(time, text);
    return item;
  });
  list.replaceChildren(...items);
  return items.length ? `${items[0].firstChild.textContent} ${items[0].lastChild.textContent}` : "";
}
