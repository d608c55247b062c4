"use strict";
// Asks the server for news every two seconds; a round that is done appears without a reload.
(() => {
  const line = document.createElement("p");
  line.id = "live";
  line.setAttribute("role", "status");
  document.querySelector("header").append(line);
  let version = "";
  async function ask() {
    try {
      const answer = await fetch(`data.json?since=${encodeURIComponent(version)}`, { cache: "no-store" });
      if (answer.status === 200) {
        const news = await answer.json();
        version = news.version;
        await window.protolithPage.update(news.data, news.parts);
        line.textContent = news.standing;
      }
    } catch {
      line.textContent = "The watcher has ended: this page stays as it is.";
    }
    setTimeout(ask, 2000);
  }
  ask();
})();
