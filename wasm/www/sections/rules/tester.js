// The request tester: what the rules make of one request, and what a gateway would answer.

import { field, h } from "../common/parts.js";

/** The clock of the tester begins here, far from zero: buckets begin full. */
const EPOCH = 1_000_000_000_000n;
const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const OUTCOMES = {
  admitted: "admitted",
  denied: "denied",
  would_deny: "would deny (dry run)",
  spared: "would admit, but another policy denies: not charged",
};

export function mountTester(host, Rules) {
  let rules = null;
  let seconds = 0;

  const text = (attributes = {}) => h("input", { type: "text", spellcheck: "false", autocomplete: "off", ...attributes });
  const method = h("select", {}, METHODS.map((name) => h("option", {}, name)));
  const [domain, path, peer, route] = [text(), text(), text({ inputmode: "text" }), text()];
  const headers = h("textarea", { rows: "2", spellcheck: "false", placeholder: "X-Api-Key: shop-a" });
  const clock = h("span", { class: "number" }, "0 s");
  const status = h("p", { class: "answer", role: "status" }, "Nothing was asked yet.");
  const raw = h("pre", { class: "raw", tabindex: "0", "aria-label": "The answer: what the gateway adds to it" });
  const client = h("p", { class: "hint" });
  const considered = h("ol", { class: "policies" });
  const send = h("button", { type: "submit", class: "primary" }, "Send");
  const burst = h("button", { type: "button", onclick: () => ask(10) }, "Send 10");
  const form = h("form", { class: "request", onsubmit: (event) => {
    event.preventDefault();
    ask(1);
  } },
    h("div", { class: "fields" },
      field("Method", method), field("Host", domain), field("Path", path),
      field("Peer address", peer), field("Route", route),
      h("div", { class: "wide" }, field("Header fields, one a line", headers))),
    h("div", { class: "buttons" }, send, burst,
      h("button", { type: "button", onclick: () => pass(1) }, "+1 s"),
      h("button", { type: "button", onclick: () => pass(60) }, "+1 min"),
      h("button", { type: "button", onclick: () => forget() }, "Begin anew"),
      h("p", { class: "clock" }, "Time ", clock)));
  host.append(form, status, raw, h("h3", {}, "Policies, in the order of the file"), client, considered);

  function pass(more) {
    seconds += more;
    clock.textContent = `${seconds} s`;
  }

  function forget() {
    rules?.reset();
    seconds = 0;
    pass(0);
    status.textContent = "All buckets are full again.";
    delete status.dataset.status;
    raw.textContent = "";
    client.textContent = "";
    considered.replaceChildren();
  }

  function request() {
    const lines = headers.value.split("\n").map((line) => line.trim()).filter((line) => line !== "");
    const wrong = lines.find((line) => !/^[!#$%&'*+.^_`|~\w-]+\s*:/.test(line));
    if (wrong !== undefined) {
      throw new Error(`“${wrong.slice(0, 40)}” is no header field: it has a name, a colon and a value, as “X-Api-Key: shop-a”. Nothing was asked.`);
    }
    return {
      method: method.value, host: domain.value.trim(), path: path.value.trim() || "/", route: route.value.trim(),
      peer: peer.value.trim() || undefined,
      headers: Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(":")).trim(), line.slice(line.indexOf(":") + 1).trim()])),
    };
  }

  function ask(times) {
    if (!rules) {
      status.textContent = "The rules have errors: mend them first.";
      return;
    }
    try {
      let answer = null;
      let passed = 0;
      for (let i = 0; i < times; i++) {
        answer = rules.check(request(), EPOCH + BigInt(seconds) * 1_000_000_000n);
        passed += answer.allowed ? 1 : 0;
      }
      show(answer, times, passed);
    } catch (error) {
      status.textContent = error.message;
      status.dataset.status = "denied";
      raw.textContent = ""; // it is another request's
      client.textContent = "";
      considered.replaceChildren();
    }
  }

  function show(answer, times, passed) {
    const many = times > 1 ? `${passed} of ${times} pass; the last: ` : "";
    const why = answer.missingHeader
      ? `the header field ${answer.missingHeader} is required and missing`
      : answer.allowed
        ? answer.policies.length === 0 ? "no policy applies, so it is not limited" : "it passes"
        : `denied by ${[...new Set(answer.policies.filter(({ outcome }) => outcome === "denied").map(({ policy }) => policy))].join(" and ")}`;
    status.textContent = `${many}${answer.status}: ${why}.`;
    status.dataset.status = answer.allowed ? "allowed" : "denied";
    const fields = answer.headers.map(([name, value]) => `${name}: ${value}`);
    raw.textContent = [`HTTP/1.1 ${answer.status}`, ...fields, ...(answer.body ? ["", answer.body] : [])].join("\n");
    list(answer.considered, answer.policies, answer.client);
  }

  function list(all, asked, address) {
    considered.replaceChildren(...all.map((one) => {
      const told = [];
      if (!one.applies) {
        told.push(...one.whyNot);
      } else if (one.missingHeader) {
        told.push(`it needs the header field ${one.missingHeader}: 401`);
      } else {
        told.push(["counts by ", h("code", {}, one.key.length > 0 ? one.key.map(({ part, value }) => value && part !== "global" ? `${part} = ${value}` : part).join(", ") : "all together")]);
        const limits = asked.filter(({ policy }) => policy === one.policy);
        told.push(...limits.map(({ limit, outcome, decision, isTightest }) =>
          [h("code", {}, limit), one.isOverride ? " (override)" : "", `: ${OUTCOMES[outcome]}, ${decision.remaining} left`, isTightest && limits.length + all.length > 2 ? "; this is told to the client" : ""]));
      }
      told.push(...one.notices);
      return h("li", { "data-applies": String(one.applies) },
        h("strong", {}, one.policy), one.applies ? " applies" : " does not apply", one.isDryRun && " (dry run)", one.hasPenalty && " (with a penalty)",
        h("ul", {}, told.map((line) => h("li", {}, line))));
    }));
    client.textContent = address ? `The client's address is ${address}.` : "";
  }

  return {
    /** New rules, or none while they have errors; counts begin anew. */
    setRules(given) {
      rules?.free();
      rules = given === null ? null : new Rules(given);
      send.disabled = burst.disabled = rules === null;
      raw.textContent = "";
      client.textContent = "";
      considered.replaceChildren();
      delete status.dataset.status;
      status.textContent = rules === null ? "The rules have errors: mend them first." : "With these rules nothing was asked yet.";
      },
    /** Fills the form in, and asks once. */
    ask(example) {
      method.value = example.method;
      [domain.value, path.value, peer.value, headers.value] = [example.host, example.path, example.peer, example.headers];
      route.value = "";
      if (rules) {
        seconds = 0;
        pass(0);
        rules.reset();
        ask(1);
      }
    },
    close: () => rules?.free(),
  };
}
