// The question who one is, of a server with a token or with users.

import * as api from "./api.js";

const $ = (id) => document.getElementById(id);
let tried = false; // a login was entered

/** Ask for what the server's refusal names. */
export function askLogin({ challenge }) {
  const dialog = $("login");
  if (dialog.open) return;
  const ways = { token: /bearer/i.test(challenge) || !challenge, user: /basic/i.test(challenge) };
  for (const line of dialog.querySelectorAll("[data-way]")) line.hidden = !ways[line.dataset.way];
  $("login-words").textContent =
    ways.token && ways.user ? "Enter its token, or a user and the password." : "";
  $("login-wrong").textContent = tried ? "The server does not know that login." : "";
  dialog.showModal();
  dialog.querySelector("p:not([hidden]) > input").focus();
}

/** Let `then` be called each time something was entered; without a right login it is asked again. */
export function whenLoggedIn(then) {
  const dialog = $("login");
  dialog.addEventListener("close", () => {
    const [token, user, password] = ["token", "user", "password"].map((x) =>
      $(`login-${x}`).value.trim(),
    );
    if (dialog.returnValue === "enter" && (token || user)) {
      api.enter({ token, user, password });
      tried = true;
    }
    for (const input of dialog.querySelectorAll("input")) input.value = "";
    then();
  });
}
