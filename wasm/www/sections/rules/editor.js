// The rules editor: CodeMirror in a shadow root, where its style sheets are adopted ones, which the
// page's strict policy allows. It is a bundle of its own, loaded when the section is opened.
//
// Tab is not taken: it leaves the editor, as it leaves any other field.

import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { EditorState } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

/**
 * Opens an editor in an empty element.
 * @param {HTMLElement} host
 * @param {{ text: string, label: string, onChange: (text: string) => void }} options
 */
export function openEditor(host, { text, label, onChange }) {
  const root = host.attachShadow({ mode: "open" });
  const view = new EditorView({
    root,
    parent: root,
    state: EditorState.create({
      doc: text,
      extensions: [
        lineNumbers(),
        lintGutter(),
        history(),
        drawSelection(),
        highlightActiveLine(),
        bracketMatching(),
        json(),
        syntaxHighlighting(colours),
        theme,
        EditorView.lineWrapping,
        EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false" }),
        keymap.of([...defaultKeymap, ...historyKeymap, ...lintKeymap]),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) {
            onChange(update.state.doc.toString());
          }
        }),
      ],
    }),
  });

  /** The offset of a line and a column, both from 1; a column counts characters, not UTF-16 units. */
  const offset = (line, column) => {
    const { doc } = view.state;
    const { from, text: shown } = doc.line(Math.min(Math.max(line, 1), doc.lines));
    const before = [...shown].slice(0, Math.max(column - 1, 0)).join("");
    return from + before.length;
  };

  return {
    /** @returns {string} */
    text: () => view.state.doc.toString(),
    setText(changed) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: changed } });
    },
    /** Marks what is wrong, and what is legal and without effect. */
    mark(marks) {
      const diagnostics = marks.map(({ line, column, message, severity }) => {
        const from = offset(line, column);
        const word = /^(?:"(?:[^"\\]|\\.)*"?|[\w.-]+|.)/.exec(view.state.doc.sliceString(from, from + 200))?.[0] ?? "";
        return { from, to: from + word.length, severity, message };
      });
      view.dispatch(setDiagnostics(view.state, diagnostics.sort((a, b) => a.from - b.from)));
    },
    /** Puts the cursor there, and the focus. */
    goTo(line, column) {
      const at = offset(line, column);
      view.dispatch({ selection: { anchor: at }, scrollIntoView: true });
      view.focus();
    },
    close: () => view.destroy(),
  };
}

// The names of the page's colours: custom properties reach into the shadow.
const theme = EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--field-ground, var(--ground))", fontSize: "0.875rem" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono, ui-monospace, monospace)", lineHeight: "1.5", minHeight: "14rem", maxHeight: "28rem" },
  ".cm-content": { caretColor: "var(--ink)", padding: "0.5rem 0" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--soft)", border: "none" },
  ".cm-activeLine": { backgroundColor: "color-mix(in srgb, var(--accent) 8%, transparent)" },
  ".cm-cursor": { borderLeftColor: "var(--ink)", borderLeftWidth: "2px" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": {
    backgroundColor: "color-mix(in srgb, var(--accent) 28%, transparent) !important",
  },
  ".cm-matchingBracket": { backgroundColor: "color-mix(in srgb, var(--accent) 25%, transparent)" },
  ".cm-tooltip": { color: "var(--ink)", backgroundColor: "var(--card)", border: "1px solid var(--line)", maxWidth: "32rem" },
  ".cm-lintRange-error": { textDecoration: "underline wavy var(--denied) 1.5px", textUnderlineOffset: "3px", backgroundImage: "none" },
  ".cm-lintRange-warning": { textDecoration: "underline wavy var(--warn) 1.5px", textUnderlineOffset: "3px", backgroundImage: "none" },
});

const colours = HighlightStyle.define([
  { tag: tags.propertyName, color: "var(--code-name, var(--accent))" },
  { tag: tags.string, color: "var(--code-string, var(--ink))" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number, var(--warn))" },
]);
