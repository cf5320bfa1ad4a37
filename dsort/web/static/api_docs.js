"use strict";

// The page /docs: each route of the service, to be tried with a token.
window.SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true });
