// The sections, in the order of the tabs.

export const SECTIONS = [
  {
    id: "bucket", tab: "Token bucket", title: "Token bucket",
    lead: "A bucket holds tokens, and each request takes one. Tokens come back at a steady rate; whoever finds the bucket empty is told to come back later.",
    load: () => import("../sections/bucket/index.js"),
  },
  {
    id: "compare", tab: "Compare", title: "Compare the algorithms",
    lead: "The same requests through every algorithm, on one time axis. The limit is the same for all; what they admit, and when, is not.",
    load: () => import("../sections/compare/index.js"),
  },
  {
    id: "cluster", tab: "Cluster", title: "Cluster: one limit for many gateways",
    lead: "Many gateways share one limit through Redis. Make Redis slow, lossy or absent, and see whether the limit still holds.",
    load: () => import("../sections/cluster/index.js"),
  },
  {
    id: "rules", tab: "Rules", title: "Rules, and last night’s log",
    lead: "Write a rules file, ask what it says to one request, and replay an access log: who would have been limited?",
    load: () => import("../sections/rules/index.js"),
  },
  {
    id: "live", tab: "Live", title: "Live: a real gateway beside the model",
    lead: "Real requests to the gateway that serves this page, drawn on what the model predicts.",
    load: () => import("../sections/live/index.js"),
  },
  {
    id: "quiz", tab: "Quiz", title: "Quiz",
    lead: "Each answer comes with its reason, and with a way to see it happen.",
    load: () => import("../sections/quiz/index.js"),
  },
];
